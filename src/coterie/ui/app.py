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
from importlib.metadata import version
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
from coterie.reports.report import report_html
from coterie.results.folder import CONFIG, read_about
from coterie.running.progress import FILE
from coterie.ui.curves import measured, metrics_file, rows_of_metrics, version_of
from coterie.ui.desk import Desk
from coterie.ui.form import form
from coterie.ui.guard import MAY_WRITE, NEVER, Guard
from coterie.ui.jobs import Jobs
from coterie.ui.labels import Label, Labels
from coterie.ui.lines import News, since
from coterie.ui.runs import WATCHED, Entry, Library, Unknown, odd, stray
from coterie.ui.verdicts import Verdicts
from coterie.ui.words import differing

ASSETS = Path(__file__).parent / "assets"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
# a report is one file with everything inside, and speaks to nobody
REPORT = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: "
    "blob:; font-src data:"
)
KEPT = 8  # reports
TOP = '<header class="top">'  # of a report
BACK = '<nav class="back" aria-label="coterie ui"><a href="/">All runs</a></nav>'


def build(
    root: Path,
    host: str = "127.0.0.1",
    token: str = "",
    cookie: str = "coterie",
    open_to_read: bool = False,
    jobs: Jobs | None = None,
) -> Starlette:
    """The app over a folder of runs; `jobs` are the runs that are started from its pages."""
    library, reports, verdicts = Library(root), Reports(), Verdicts()
    jobs = jobs or Jobs(library.root)
    desk = Desk(library, Labels(library.root), jobs)
    # all plain functions, which starlette calls in threads: a slow report holds up nobody
    routes = [
        Route("/", page("runs.html")),
        Route("/run", page("run.html")),
        Route("/compare", page("compare.html")),
        Route("/start", page("start.html")),
        Route("/report", told_of(lambda request: report(library, reports, request))),
        Route("/api/runs", told_of(lambda request: listing(desk, request))),
        Route("/api/words", told_of(lambda request: words_told(library, request))),
        Route("/api/verdict", told_of(lambda request: verdict(library, verdicts, request))),
        Route("/api/form", told_of(lambda request: answer(form(request.query_params)))),
        Route("/api/log", told_of(lambda request: log(jobs, request))),
        *[
            Route(f"/api/{name}", posted(change), methods=["POST"])
            for name, change in desk.changes().items()
        ],
        Route("/api/run", told_of(lambda request: run(desk, request))),
        Route("/api/measured", told_of(lambda request: table(library, request))),
        Route("/api/chosen", told_of(lambda request: chosen(library, request))),
        *[
            Route(f"/assets/{path.name}", asset(path))
            for path in sorted(ASSETS.iterdir())
            if path.suffix in KINDS
        ],
        Route("/assets/plotly.js", plotly),
    ]
    handlers: Any = {404: _no_page, BadInput: _problem}
    guard = Middleware(Guard, host=host, token=token, cookie=cookie, open_to_read=open_to_read)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


def told_of(route: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """A route that tells in one line what a damaged or vanishing file makes its reader raise."""

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
                f"{asked[:200] or 'the list'} cannot be read: {_short(damage)}"
            ) from damage

    return answered


def posted(change: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    """A route that changes something: what was sent, as JSON, goes in, and what came of it out."""

    async def answered(request: Request) -> Response:
        try:
            sent = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise BadInput("what was sent is no JSON") from None
        if not isinstance(sent, dict):
            raise BadInput("what was sent is no table of words")
        return answer(await run_in_threadpool(change, sent))

    return answered


def page(name: str) -> Callable[[Request], Response]:
    text = (
        (ASSETS / name)
        .read_text(encoding="utf-8")
        .replace("VERSION", __version__)
        .replace("PLOTLY", version("plotly"))
    )
    return lambda request: HTMLResponse(text)


def asset(path: Path) -> Callable[[Request], Response]:
    content, kind = path.read_bytes(), KINDS[path.suffix]
    return lambda request: Response(content, media_type=kind)


def plotly(request: Request) -> Response:
    """Plotly from the installed package: no request leaves the machine."""
    from plotly.offline import get_plotlyjs

    return Response(get_plotlyjs(), media_type="text/javascript", headers=FOREVER)


def answer(content: Any, request: Request | None = None) -> Response:
    """JSON; 304 where the asker has it already."""
    text = json.dumps(content, allow_nan=False).encode()
    tag = f'"{hashlib.blake2b(text, digest_size=12).hexdigest()}"'
    if request is not None and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(text, media_type="application/json", headers={"ETag": tag})


def told(entry: Entry) -> dict[str, Any]:
    """An entry as a page gets it."""
    said = entry._asdict() | {"name": entry.path.name, "path": str(entry.path)}
    del said["words"]  # asked for by themselves
    said["path"] = said["path"].encode("utf-8", "replace").decode()
    return said | {k: said[k].encode("utf-8", "replace").decode() for k in ("name", "why")}


def listing(desk: Desk, request: Request) -> Response:
    """Every run with its label; whether this visitor may change anything, and what is at work."""
    labels, trouble = desk.labelled()
    runs = [
        told(e) | {"label": labels.get(e.id, Label())._asdict()}
        for e in desk.library.entries().values()
    ]
    return answer(
        {
            "folder": str(desk.library.root),
            "runs": runs,
            "may_write": bool(request.scope.get(MAY_WRITE)),
            "jobs": desk.jobs.states(),
            "trouble": trouble,
        },
        request,
    )


def words_told(library: Library, request: Request) -> Response:
    """The words of the chosen runs; without a choice, those that differ among all runs."""
    ids = request.query_params.getlist("run")
    found = library.runs(ids) if ids else library.entries().values()
    runs = {e.id: dict(e.words) for e in found if e.kind == "run" and e.words}
    differ = differing(list(runs.values()))
    if not ids:
        runs = {k: {w: v for w, v in words.items() if w in differ} for k, words in runs.items()}
    return answer({"words": runs, "differ": differ}, request)


def verdict(library: Library, verdicts: Verdicts, request: Request) -> Response:
    """What the answer of a comparison says."""
    entry = _one(library, request)
    _check_inside(library, entry)
    return answer({"verdict": verdicts.of(entry)}, request)


def log(jobs: Jobs, request: Request) -> Response:
    """What a run that was started from a page has printed since the byte `after`."""
    return answer(jobs.told(request.query_params.get("id", ""), _after(request)))


def _after(request: Request) -> int:
    try:
        return min(int(request.query_params.get("after", "0")), 2**62)
    except ValueError:
        raise BadInput("after = a whole number of bytes") from None


def _one(library: Library, request: Request) -> Entry:
    return library.find([request.query_params.get("id", "")])[0]


def _metrics(entry: Entry) -> Path | None:
    return (
        metrics_file(entry.path)
        if entry.kind == "run" and entry.status not in ("damaged", "unread")
        else None
    )


def run(desk: Desk, request: Request) -> Response:
    """A run, and its rounds since the byte `after` of its progress."""
    library, name = desk.library, request.query_params.get("id", "")
    job, after = desk.jobs.find(name), _after(request)
    shared = {
        "now": time.time(),
        "may_write": bool(request.scope.get(MAY_WRITE)),
        "job": job.state if job else "",
    }
    if job and name not in library.entries():  # it has been started, and has no folder yet
        return answer({"run": None, "measured": "", **shared, **News([], 0, False)._asdict()})
    entry = _one(library, request)
    path = _metrics(entry)
    news = News([], 0, False)
    if entry.kind == "run" and not (entry.path / FILE).is_symlink():
        news = _news(entry.path / FILE, after)
        if path and not news.rows and not (entry.path / FILE).exists():
            news = News(rows_of_metrics(_own(path, library), entry.part), 0, True)
    label = desk.labelled()[0].get(entry.id, Label())
    said = told(entry) | {"label": label._asdict()}
    return answer({"run": said, "measured": version_of(path), **shared, **news._asdict()})


def _news(path: Path, after: int) -> News:
    try:
        return since(path, after)
    except BadInput:  # a pipe or a folder in its place
        return News([], 0, after > 0)


def table(library: Library, request: Request) -> Response:
    """The curves of every part and view, and the words of the run."""
    entry = _one(library, request)
    path = _metrics(entry)
    config = _own(entry.path / CONFIG, library)
    words = _words(config)
    if path is None:
        return answer({"curves": [], "clients": None, "config": words})
    return answer(
        {**measured(_own(path, library), read_about(entry.path)["clients"]), "config": words},
        request,
    )


def _words(config: Path) -> str:
    """The words of a run as they are written; those of a damaged file are left out."""
    try:
        return read_text(config)
    except (BadInput, OSError):
        return ""


def _own(path: Path, library: Library) -> Path:
    """The path, if it does not lead out of the folder by a link."""
    if not path.resolve().is_relative_to(library.root):
        raise BadInput(f"{path.name} is a link out of the folder: coterie ui does not follow it")
    return path


def chosen(library: Library, request: Request) -> Response:
    """The runs of several ids, comparisons opened."""
    return answer([told(e) for e in library.runs(request.query_params.getlist("run"))], request)


class Reports:
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
        files += [m for r in runs if (m := metrics_file(r.path))]
        key = (tuple(folders), *sorted((str(p), version_of(p)) for p in files))
        with self.lock:  # one at a time: two cores are soon busy
            if key not in self.pages:
                self.pages[key] = report_html(folders)
                while len(self.pages) > KEPT:
                    self.pages.popitem(last=False)
            self.pages.move_to_end(key)
            return self.pages[key]


def report(library: Library, reports: Reports, request: Request) -> Response:
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
            f"no report of {', '.join(e.path.name for e in entries)}: {_short(damage)}"
        ) from damage
    text = text.replace(TOP, BACK + TOP, 1)
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT + NEVER})


def _check_inside(library: Library, entry: Entry) -> None:
    """Refuse a run with a pipe or a link that leads out of the folder."""
    if strange := odd(entry.path):
        raise BadInput(f"{strange.relative_to(library.root)} is not a file: move it away")
    if away := stray(entry.path, library.root):
        raise BadInput(
            f"{away.relative_to(library.root)} is a link out of the folder: coterie ui does "
            "not follow it"
        )


def _short(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


def _no_page(request: Request, problem: Exception) -> Response:
    return _said(request, "there is no such page; the list of runs is at /", 404)


def _problem(request: Request, problem: Exception) -> Response:
    return _said(
        request, " ".join(str(problem).split()), 404 if isinstance(problem, Unknown) else 422
    )


def _said(request: Request, line: str, status: int) -> Response:
    """One clear line, as JSON for a script and as a page for a reader."""
    line = line.encode("utf-8", "replace").decode()
    if request.url.path.startswith("/api/"):
        return Response(json.dumps({"problem": line}), status, media_type="application/json")
    text = (ASSETS / "problem.html").read_text(encoding="utf-8")
    return HTMLResponse(text.replace("PROBLEM", escape(line)), status)
