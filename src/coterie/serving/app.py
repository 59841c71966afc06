"""The HTTP face of personal models."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from html import escape
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from coterie.analysis.calibration import prediction_sets, scale_probabilities
from coterie.core.errors import BadInput
from coterie.results.personal_models import ModelTask
from coterie.results.sureness import Sureness
from coterie.serving.batching import Prediction, QueueFull
from coterie.serving.generation import LIMITS, Sampling, read_sampling
from coterie.serving.generation_worker import NewText
from coterie.serving.metrics import CONTENT_TYPE
from coterie.serving.predictions import add_sureness, prediction_frame_of
from coterie.serving.request_rows import ARROW, CSV, JSON
from coterie.serving.service import Service, Snapshot

MAX_INLINE_BODY = 32_768  # bytes of a body that is read without asking another thread
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]


class RequestRefused(Exception):
    """A request that goes no further, with its status."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status, self.line = status, line


def build_app(service: Service, watch: float = 0.0, loopback: bool = True) -> Starlette:
    """The app of a service; watch: seconds between two looks for a newer run, 0 for none."""
    routes = [
        Route("/", _page_route(service)),
        Route("/openapi.json", lambda request: JSONResponse(service.openapi, headers=HEADERS)),
        Route("/health", lambda request: JSONResponse(service.describe(), headers=HEADERS)),
        Route("/metrics", _metrics_route(service)),
        Route("/clients/{client:path}/predict", _predict_route(service), methods=["POST"]),
        Route("/clients/{client:path}/generate", _generate_route(service), methods=["POST"]),
        Route("/clients/{client:path}/card", _card_route(service)),
    ]
    if service.tokens is not None:
        routes.append(Route("/reload", _reload_route(service), methods=["POST"]))
    # without tokens a page of another name that resolves to this machine could ask
    hosts = LOOPBACK if service.tokens is None and loopback else ["*"]
    handlers: Any = {HTTPException: _handle_http_error}
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers=handlers,
        lifespan=lambda app: _lifespan(service, watch),
    )


@contextlib.asynccontextmanager
async def _lifespan(service: Service, watch: float) -> AsyncIterator[None]:
    """Listen to SIGHUP and look for newer runs while the app lives; then answer what waits."""
    loop, tasks = asyncio.get_running_loop(), []
    listens = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
    if listens:
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.append(loop.create_task(again())))

    async def again() -> None:
        with contextlib.suppress(BadInput):  # the run that is served goes on
            await run_in_threadpool(service.reload)

    async def look() -> None:
        while True:
            await asyncio.sleep(watch)
            if service.version() not in (service.seen, ("", 0.0)):
                await again()

    if watch:
        tasks.append(loop.create_task(look()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if listens:
            loop.remove_signal_handler(signal.SIGHUP)
        await run_in_threadpool(service.worker.close)
        await run_in_threadpool(service.generation.close)


def _error_response(status: int, line: str) -> Response:
    """One clear line."""
    headers = dict(HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = "1"
    text = " ".join(line.split()).encode("utf-8", "replace").decode()
    return JSONResponse({"problem": text}, status, headers)


def _handle_http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    answer = _error_response(problem.status_code, "there is no such address; see /openapi.json")
    if problem.status_code == 405:
        answer = _error_response(405, "this address takes another method; see /openapi.json")
        answer.headers["Allow"] = (problem.headers or {}).get("Allow", "")
    return answer


Handler = Callable[[Request], Awaitable[Response]]


def _catch_refusals(route: Handler) -> Handler:
    """A route whose refusals are one line each."""

    async def answered(request: Request) -> Response:
        try:
            return await route(request)
        except RequestRefused as problem:
            return _error_response(problem.status, problem.line)
        except BadInput as problem:
            return _error_response(422, str(problem))

    return answered


def _predict_route(service: Service) -> Handler:
    async def route(request: Request) -> Response:
        now = service.current
        served, client = now.served, _authorize_client(now, request)
        kind = _content_type(request, (JSON, CSV, ARROW))
        sure = served.sureness(client) if _asks_sureness(request) else None
        body = await _read_body(service, request)
        read, most = served.reader.read, service.limits.rows
        name = served.models.names[client]
        if kind == JSON and len(body) <= MAX_INLINE_BODY:
            rows = read(kind, body, name, most)
        else:
            rows = await run_in_threadpool(read, kind, body, name, most)
        try:
            waits = service.worker.ask(served, client, rows)
            answer = await asyncio.wait_for(waits, service.limits.seconds)
        except QueueFull:
            raise RequestRefused(503, "too many requests wait: try again in a second") from None
        except TimeoutError:
            raise RequestRefused(504, "the answer took too long: send fewer rows") from None
        except BadInput as problem:
            raise RequestRefused(503, f"this model cannot be used now: {problem}") from None
        numbers = answer.predictions if answer.probabilities is None else answer.probabilities
        if not np.isfinite(numbers).all():
            raise BadInput("the model gives no finite number for a row: look at its cells")
        service.numbers.rows += rows.height
        return _format_response(request, name, served.task, answer, sure)

    async def timed(request: Request) -> Response:
        began = time.perf_counter()
        response = await _catch_refusals(route)(request)
        service.numbers.note(response.status_code, time.perf_counter() - began)
        return response

    return timed


def _asks_sureness(request: Request) -> bool:
    """Whether calibrated probabilities and sets or intervals are asked for."""
    if not request.scope["query_string"]:
        return False
    said = request.query_params.get("sure", "false")
    if said not in ("true", "false"):
        raise BadInput("sure is true or false")
    return said == "true"


def _generate_route(service: Service) -> Handler:
    """A text that the client's own language model goes on with, whole or as it grows."""

    async def route(request: Request) -> Response:
        now = service.current
        served, client = now.served, _authorize_client(now, request)
        _content_type(request, (JSON,))
        prompt, stream, how = _read_prompt(await _read_body(service, request))
        generator = service.generation.generator(served)
        ids = await run_in_threadpool(generator.read_prompt, client, prompt, how)
        try:
            out = service.generation.ask(served, client, ids, how)
        except QueueFull:
            raise RequestRefused(503, "too many requests wait: try again in a second") from None
        if stream:
            events = _stream_events(service, out)
            return StreamingResponse(events, headers=HEADERS, media_type="text/event-stream")
        parts = [part async for part in _read_parts(service, out)]
        body = {
            "client": served.models.names[client],
            "text": "".join(part.text for part in parts),
            "finish_reason": parts[-1].last,
            "tokens": parts[-1].tokens,
        }
        return JSONResponse(body, headers=HEADERS)

    async def timed(request: Request) -> Response:
        began = time.perf_counter()
        response = await _catch_refusals(route)(request)
        service.numbers.note(response.status_code, time.perf_counter() - began)
        return response

    return timed


def _read_prompt(body: bytes) -> tuple[str, bool, Sampling]:
    """The prompt of a request, whether its text is sent as it grows, and how it is drawn."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the body is no JSON") from None
    known = ("prompt", "stream", *Sampling._fields)
    if not isinstance(asked, dict) or not isinstance(asked.get("prompt"), str):
        raise BadInput('the body must be {"prompt": "..."}, with options beside it')
    odd = [key for key in asked if key not in known]
    if odd:
        raise BadInput(f"unknown option '{odd[0]}': choose from {', '.join(known)}")
    stream = asked.get("stream", False)
    if not isinstance(stream, bool):
        raise BadInput("stream is true or false")
    return (
        asked["prompt"],
        stream,
        read_sampling({k: asked[k] for k in asked if k in LIMITS}),
    )


async def _read_parts(service: Service, out: asyncio.Queue[Any]) -> AsyncIterator[NewText]:
    """The parts of a text as they come."""
    while True:
        try:
            part = await asyncio.wait_for(out.get(), service.limits.seconds)
        except TimeoutError:
            raise RequestRefused(504, "the answer took too long: ask for fewer tokens") from None
        if isinstance(part, BadInput):
            raise RequestRefused(503, f"this model cannot be used now: {part}")
        if isinstance(part, Exception):
            raise part
        yield part
        if part.last:
            return


async def _stream_events(service: Service, out: asyncio.Queue[Any]) -> AsyncIterator[str]:
    """The same as server-sent events; a problem is the last of them."""
    try:
        async for part in _read_parts(service, out):
            body = {"text": part.text}
            if part.last:
                body |= {"finish_reason": part.last, "tokens": part.tokens}  # type: ignore[dict-item]
            yield f"data: {json.dumps(body)}\n\n"
    except RequestRefused as problem:
        yield f"data: {json.dumps({'problem': problem.line})}\n\n"


def _card_route(service: Service) -> Handler:
    async def route(request: Request) -> Response:
        now = service.current
        client = _authorize_client(now, request)
        models = now.served.models
        try:
            card = await run_in_threadpool(lambda: models.card(client, models.weights(client)))
        except BadInput as problem:
            raise RequestRefused(503, f"this model cannot be used now: {problem}") from None
        return JSONResponse(card, headers=HEADERS)

    return _catch_refusals(route)


def _reload_route(service: Service) -> Handler:
    async def route(request: Request) -> Response:
        token = _read_token(request)
        if service.tokens is None or not service.tokens.is_admin(token):
            known = service.tokens is not None and service.tokens.client(token) is not None
            raise RequestRefused(403 if known else 401, "only the admin's token reloads")
        body = await _read_body(service, request)
        name = ""
        if body:
            _content_type(request, (JSON,))
            try:
                asked = json.loads(body)
            except (ValueError, RecursionError):
                raise BadInput("the body is no JSON") from None
            if not isinstance(asked, dict) or not set(asked) <= {"run"}:
                raise BadInput('the body may be {"run": "NAME"}')
            name = asked.get("run", "")
            if not isinstance(name, str):
                raise BadInput('the body may be {"run": "NAME"}')
        return JSONResponse(await run_in_threadpool(service.reload, name), headers=HEADERS)

    return _catch_refusals(route)


def _read_token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise RequestRefused(401, "send the client's token, as in Authorization: Bearer TOKEN")
    return token.strip()


def _authorize_client(now: Snapshot, request: Request) -> int:
    """The number of the client that a request names and may ask for."""
    client, numbers = request.path_params["client"], now.served.models.numbers
    if now.tokens is None:
        if client not in numbers:
            raise RequestRefused(404, "the run has no such client")
        return numbers[client]
    owner = now.tokens.client(_read_token(request))
    if owner is None:
        raise RequestRefused(401, "this token is not known")
    if owner != client or client not in numbers:
        raise RequestRefused(403, "this token opens another client's model, not this one")
    return numbers[client]


def _content_type(request: Request, known: tuple[str, ...]) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in known:
        raise RequestRefused(415, f"send {', '.join(known)}")
    return kind


async def _read_body(service: Service, request: Request) -> bytes:
    """The body, if it is not too large and does not take too long."""
    most = service.limits.bytes
    line = f"the body has more than {most:,} bytes: send fewer rows"
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise RequestRefused(413, line)

    async def gather() -> bytes:
        found = bytearray()
        async for part in request.stream():
            found += part
            if len(found) > most:
                raise RequestRefused(413, line)
        return bytes(found)

    try:
        return await asyncio.wait_for(gather(), service.limits.seconds)
    except TimeoutError:
        raise RequestRefused(504, "the body took too long to come") from None
    except ClientDisconnect:
        raise RequestRefused(422, "the body did not come to its end") from None


def _format_response(
    request: Request, client: str, task: ModelTask, answer: Prediction, sure: Sureness | None
) -> Response:
    """An answer in the form that is asked for."""
    n = len(answer.predictions)
    more = (np.full(n, sure.temperature or 1.0), np.full(n, sure.quantile)) if sure else None
    wanted = request.headers.get("accept", "")
    if CSV in wanted or ARROW in wanted:
        frame = prediction_frame_of(task, answer.predictions, answer.probabilities)
        if more:
            frame = add_sureness(task, frame, answer.probabilities, *more)
        if ARROW in wanted:
            sink = io.BytesIO()
            frame.write_ipc_stream(sink)
            return Response(sink.getvalue(), media_type=ARROW, headers=HEADERS)
        return Response(frame.write_csv(), headers=HEADERS | {"Content-Type": CSV})
    body: dict[str, Any] = {"client": client, "predictions": answer.predictions.tolist()}
    shares = answer.probabilities
    if shares is not None and more:
        shares = scale_probabilities(shares.astype(float), more[0][:, None])
    if shares is not None:
        body |= {"classes": task.classes.tolist(), "probabilities": shares.tolist()}
    if more and sure:
        body |= {"confidence": sure.confidence} | _name_sets(task, answer, more[1])
    return JSONResponse(body, headers=HEADERS)


def _name_sets(task: ModelTask, answer: Prediction, reach: np.ndarray) -> dict[str, Any]:
    """The set of classes of every row, or its interval; an end that is not known is null."""
    if answer.probabilities is None:
        ends = np.stack([answer.predictions - reach, answer.predictions + reach], axis=1)
        known = [[end if np.isfinite(end) else None for end in pair] for pair in ends.tolist()]
        return {"intervals": known}
    inside = prediction_sets(answer.probabilities.astype(float), reach[:, None])
    return {"sets": [task.classes[row].tolist() for row in inside]}


def _metrics_route(service: Service) -> Callable[[Request], Response]:
    def route(request: Request) -> Response:
        text = service.numbers.text(service.gauges())
        return Response(text, headers=HEADERS | {"Content-Type": CONTENT_TYPE})

    return route


def _page_route(service: Service) -> Callable[[Request], Response]:
    """A page for a reader: the addresses, and how to ask."""

    def route(request: Request) -> Response:
        rows = "".join(
            f"<tr><td><code>{method.upper()} {escape(path)}</code></td>"
            f"<td>{escape(entry['summary'])}</td></tr>"
            for path, methods in service.openapi["paths"].items()
            for method, entry in methods.items()
        )
        head = '<meta charset="utf-8"><title>Personal models</title><style>body{font:16px/1.5 '
        head += "system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
        head += "td{padding:.2rem 1rem .2rem 0;vertical-align:top}</style>"
        text = (
            f'<!doctype html><html lang="en"><head>{head}</head><body><h1>Personal models</h1>'
            f"<p>{service.describe()['clients']:,} clients, each with a model of its own.</p>"
            f"<table>{rows}</table><p>What each address takes and gives is in "
            '<a href="/openapi.json">openapi.json</a>.</p></body></html>'
        )
        return HTMLResponse(text, headers=HEADERS | {"Content-Security-Policy": PAGE_POLICY})

    return route
