"""The pages and the data behind them; a request names runs by their ids in the list, never by a
path.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from coterie.core.errors import BadInput
from coterie.core.files import read_text
from coterie.core.version import __version__
from coterie.reports.page import read_plotly
from coterie.reports.report import report_html
from coterie.results.folder import CONFIG, read_about
from coterie.running.progress import FILE
from coterie.ui.access import MAY_WRITE, POLICY_END, UPLOAD, AccessMiddleware
from coterie.ui.actions import Actions
from coterie.ui.curves import find_metrics_file, read_curves, read_progress_rows, version_of
from coterie.ui.flat_config import find_differing
from coterie.ui.form import build_form
from coterie.ui.jobs import Jobs
from coterie.ui.labels import Label, Labels
from coterie.ui.progress_file import ProgressNews, read_since
from coterie.ui.runs import WATCHED, Entry, Library, UnknownRun, find_special_file, find_stray_link
from coterie.ui.uploads import preview_table
from coterie.ui.verdict_cache import VerdictCache

ASSETS = Path(__file__).parent / "assets"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
# a report is one file with everything inside, and speaks to nobody
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: "
    "blob:; font-src data:"
)
MAX_REPORTS = 8  # reports
TOP = '<header class="top">'  # of a report
BACK = '<nav class="back" aria-label="coterie ui"><a href="/">All runs</a></nav>'


def build_app(
    root: Path,
    host: str = "127.0.0.1",
    token: str = "",
    cookie: str = "coterie",
    open_to_read: bool = False,
    jobs: Jobs | None = None,
) -> Starlette:
    """The app over a folder of runs; `jobs` are the runs that are started from its pages."""
    library, reports, verdicts = Library(root), ReportCache(), VerdictCache()
    jobs = jobs or Jobs(library.root)
    desk = Actions(library, Labels(library.root), jobs)
    # all plain functions, which starlette calls in threads: a slow report holds up nobody
    routes = [
        Route("/", page_route("runs.html")),
        Route("/run", page_route("run.html")),
        Route("/compare", page_route("compare.html")),
        Route("/start", page_route("start.html")),
        Route("/report", catch_damage(lambda request: get_report(library, reports, request))),
        Route("/api/runs", catch_damage(lambda request: get_runs(desk, request))),
        Route("/api/options", catch_damage(lambda request: get_options(library, request))),
        Route(
            "/api/verdict", catch_damage(lambda request: get_verdict(library, verdicts, request))
        ),
        Route(
            "/api/form",
            catch_damage(lambda request: json_response(build_form(request.query_params))),
        ),
        Route(
            "/api/preview",
            catch_damage(
                lambda request: json_response(preview_table(library.root, request.query_params))
            ),
        ),
        Route(UPLOAD, upload_route(desk), methods=["POST"]),
        Route("/api/log", catch_damage(lambda request: get_log(jobs, request))),
        *[
            Route(f"/api/{name}", post_route(change), methods=["POST"])
            for name, change in desk.changes().items()
        ],
        Route("/api/run", catch_damage(lambda request: get_run(desk, request))),
        Route("/api/measured", catch_damage(lambda request: get_curves(library, request))),
        Route("/api/chosen", catch_damage(lambda request: get_chosen(library, request))),
        *[
            Route(f"/assets/{path.name}", asset_route(path))
            for path in sorted(ASSETS.iterdir())
            if path.suffix in KINDS
        ],
        Route("/assets/plotly.js", serve_plotly),
    ]
    handlers: Any = {404: _handle_not_found, BadInput: _handle_bad_input}
    guard = Middleware(
        AccessMiddleware, host=host, token=token, cookie=cookie, open_to_read=open_to_read
    )
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


def catch_damage(route: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """A route that reports in one line what a damaged or vanishing file makes its reader raise."""

    def answered(request: Request) -> Response:
        try:
            return route(request)
        except BadInput:
            raise
        except Exception as damage:
            asked = ", ".join(
                value for name, value in request.query_params.multi_items() if name in ("id", "run")
            )
            raise BadInput(
                f"{asked[:200] or 'the list'} cannot be read: {_summarize_error(damage)}"
            ) from damage

    return answered


def post_route(change: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    """A route that changes something: what was sent, as JSON, goes in, and what came of it out."""

    async def answered(request: Request) -> Response:
        try:
            sent = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise BadInput("what was sent is no JSON") from None
        if not isinstance(sent, dict):
            raise BadInput("what was sent is no table of options")
        return json_response(await run_in_threadpool(change, sent))

    return answered


def upload_route(desk: Actions) -> Callable[[Request], Awaitable[Response]]:
    """A route that keeps a table as it was sent."""

    async def answered(request: Request) -> Response:
        content = await request.body()
        name = request.query_params.get("name", "")
        return json_response(await run_in_threadpool(desk.upload, name, content))

    return answered


def page_route(name: str) -> Callable[[Request], Response]:
    text = (
        (ASSETS / name)
        .read_text(encoding="utf-8")
        .replace("VERSION", __version__)
        .replace("PLOTLY", __version__)
    )
    return lambda request: HTMLResponse(text)


def asset_route(path: Path) -> Callable[[Request], Response]:
    content, kind = path.read_bytes(), KINDS[path.suffix]
    return lambda request: Response(content, media_type=kind)


def serve_plotly(request: Request) -> Response:
    """Plotly as reports hold it: no request leaves the machine."""
    return Response(read_plotly(), media_type="text/javascript", headers=FOREVER)


def json_response(content: Any, request: Request | None = None) -> Response:
    """JSON; 304 where the asker has it already."""
    text = json.dumps(content, allow_nan=False).encode()
    tag = f'"{hashlib.blake2b(text, digest_size=12).hexdigest()}"'
    if request is not None and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(text, media_type="application/json", headers={"ETag": tag})


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as a page gets it."""
    said = entry._asdict() | {"name": entry.path.name, "path": str(entry.path)}
    del said["settings"]  # asked for by themselves
    said["path"] = said["path"].encode("utf-8", "replace").decode()
    return said | {k: said[k].encode("utf-8", "replace").decode() for k in ("name", "why")}


def get_runs(desk: Actions, request: Request) -> Response:
    """Every run with its label; whether this visitor may change anything, and what is at work."""
    labels, trouble = desk.read_labels()
    runs = [
        entry_json(e) | {"label": labels.get(e.id, Label())._asdict()}
        for e in desk.library.entries().values()
    ]
    return json_response(
        {
            "folder": str(desk.library.root),
            "runs": runs,
            "may_write": bool(request.scope.get(MAY_WRITE)),
            "jobs": desk.jobs.states(),
            "trouble": trouble,
        },
        request,
    )


def get_options(library: Library, request: Request) -> Response:
    """The options of the chosen runs; without a choice, those that differ among all runs."""
    ids = request.query_params.getlist("run")
    found = library.runs(ids) if ids else library.entries().values()
    runs = {e.id: dict(e.settings) for e in found if e.kind == "run" and e.settings}
    differ = find_differing(list(runs.values()))
    if not ids:
        runs = {
            k: {w: v for w, v in settings.items() if w in differ} for k, settings in runs.items()
        }
    return json_response({"options": runs, "differ": differ}, request)


def get_verdict(library: Library, verdicts: VerdictCache, request: Request) -> Response:
    """What the answer of a comparison says, its figures, and the run of the method to use."""
    entry = _find_entry(library, request)
    _check_inside(library, entry)
    found = verdicts.of(entry)
    use = f"{entry.id}/{found['use']}" if found["use"] else ""
    return json_response({**found, "use": use if use in library.entries() else ""}, request)


def get_log(jobs: Jobs, request: Request) -> Response:
    """What a run that was started from a page has printed since the byte `after`."""
    return json_response(jobs.describe(request.query_params.get("id", ""), _read_offset(request)))


def _read_offset(request: Request) -> int:
    try:
        return min(int(request.query_params.get("after", "0")), 2**62)
    except ValueError:
        raise BadInput("after = a whole number of bytes") from None


def _find_entry(library: Library, request: Request) -> Entry:
    return library.find([request.query_params.get("id", "")])[0]


def _metrics_path(entry: Entry) -> Path | None:
    return (
        find_metrics_file(entry.path)
        if entry.kind == "run" and entry.status not in ("damaged", "unread")
        else None
    )


def get_run(desk: Actions, request: Request) -> Response:
    """A run, and its rounds since the byte `after` of its progress."""
    library, name = desk.library, request.query_params.get("id", "")
    job, after = desk.jobs.find(name), _read_offset(request)
    shared = {
        "now": time.time(),
        "may_write": bool(request.scope.get(MAY_WRITE)),
        "job": job.state if job else "",
    }
    if job and name not in library.entries():  # it has been started, and has no folder yet
        return json_response(
            {"run": None, "measured": "", **shared, **ProgressNews([], 0, False)._asdict()}
        )
    entry = _find_entry(library, request)
    path = _metrics_path(entry)
    news = ProgressNews([], 0, False)
    if entry.kind == "run" and not (entry.path / FILE).is_symlink():
        news = _read_news(entry.path / FILE, after)
        if path and not news.rows and not (entry.path / FILE).exists():
            news = ProgressNews(
                read_progress_rows(_require_inside(path, library), entry.part), 0, True
            )
    label = desk.read_labels()[0].get(entry.id, Label())
    said = entry_json(entry) | {"label": label._asdict()}
    return json_response({"run": said, "measured": version_of(path), **shared, **news._asdict()})


def _read_news(path: Path, after: int) -> ProgressNews:
    try:
        return read_since(path, after)
    except BadInput:  # a pipe or a folder in its place
        return ProgressNews([], 0, after > 0)


def get_curves(library: Library, request: Request) -> Response:
    """The curves of every part and view, and the options of the run."""
    entry = _find_entry(library, request)
    path = _metrics_path(entry)
    config = _require_inside(entry.path / CONFIG, library)
    settings = _read_config_text(config)
    if path is None:
        return json_response({"curves": [], "clients": None, "config": settings})
    return json_response(
        {
            **read_curves(_require_inside(path, library), read_about(entry.path)["clients"]),
            "config": settings,
        },
        request,
    )


def _read_config_text(config: Path) -> str:
    """The options of a run as they are written; those of a damaged file are left out."""
    try:
        return read_text(config)
    except (BadInput, OSError):
        return ""


def _require_inside(path: Path, library: Library) -> Path:
    """The path, if it does not lead out of the folder by a link."""
    if not path.resolve().is_relative_to(library.root):
        raise BadInput(f"{path.name} is a link out of the folder: coterie ui does not follow it")
    return path


def get_chosen(library: Library, request: Request) -> Response:
    """The runs of several ids, comparisons opened."""
    return json_response(
        [entry_json(e) for e in library.runs(request.query_params.getlist("run"))], request
    )


class ReportCache:
    """Rendered reports, the last few, until a file of their runs changes."""

    def __init__(self) -> None:
        self.lock, self.pages = Lock(), OrderedDict[tuple[Any, ...], str]()

    def page(self, folders: list[Path], runs: list[Entry]) -> str:
        files = [
            p
            for f in {*folders, *(r.path for r in runs)}
            for n in WATCHED
            if n != FILE and (p := f / n).exists()
        ]
        files += [m for r in runs if (m := find_metrics_file(r.path))]
        key = (tuple(folders), *sorted((str(p), version_of(p)) for p in files))
        with self.lock:  # one at a time: two cores are soon busy
            if key not in self.pages:
                self.pages[key] = report_html(folders)
                while len(self.pages) > MAX_REPORTS:
                    self.pages.popitem(last=False)
            self.pages.move_to_end(key)
            return self.pages[key]


def get_report(library: Library, reports: ReportCache, request: Request) -> Response:
    """The report of a run, a comparison or several of them, made now."""
    ids = list(dict.fromkeys(request.query_params.getlist("run")))
    entries = library.find(ids)
    if not entries:
        raise BadInput("choose the runs to report on, as in /report?run=NAME")
    for entry in entries:
        if entry.status == "damaged":
            raise BadInput(f"{entry.path.name} is damaged: {entry.why}")
        _check_inside(library, entry)
    try:
        text = reports.page([e.path for e in entries], library.runs(ids))
    except BadInput:
        raise
    except Exception as damage:  # whatever a damaged or half-written file makes its reader raise
        raise BadInput(
            f"no report of {', '.join(e.path.name for e in entries)}: {_summarize_error(damage)}"
        ) from damage
    text = text.replace(TOP, BACK + TOP, 1)
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY + POLICY_END})


def _check_inside(library: Library, entry: Entry) -> None:
    """Refuse a run with a pipe or a link that leads out of the folder."""
    if strange := find_special_file(entry.path):
        raise BadInput(f"{strange.relative_to(library.root)} is not a file: move it away")
    if away := find_stray_link(entry.path, library.root):
        raise BadInput(
            f"{away.relative_to(library.root)} is a link out of the folder: coterie ui does "
            "not follow it"
        )


def _summarize_error(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


def _handle_not_found(request: Request, problem: Exception) -> Response:
    return _error_response(request, "there is no such page; the list of runs is at /", 404)


def _handle_bad_input(request: Request, problem: Exception) -> Response:
    return _error_response(
        request, " ".join(str(problem).split()), 404 if isinstance(problem, UnknownRun) else 422
    )


def _error_response(request: Request, line: str, status: int) -> Response:
    """One clear line, as JSON for a script and as a page for a reader."""
    line = line.encode("utf-8", "replace").decode()
    if request.url.path.startswith("/api/"):
        return Response(json.dumps({"problem": line}), status, media_type="application/json")
    text = (ASSETS / "problem.html").read_text(encoding="utf-8")
    return HTMLResponse(text.replace("PROBLEM", escape(line)), status)
