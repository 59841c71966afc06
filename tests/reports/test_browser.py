"""The report's page in a real browser: what is drawn, what answers, and that nothing leaves the
page.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coterie.reports.page import embed, render
from helpers.sample_report import SOME, sample

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    '"><script>alert(2)</script>',
    "</script><b>bold</b>",
    "a&amp;b %{x} {{data}}",
    "\u2028line",
    "<!--",
    "<b>bold</b>",
]
PATIENCE = 30_000  # milliseconds
MARKS = ".trace path, .points path, .hm image, .point path"


class Seen:
    """A page and what it asked for and complained of."""

    def __init__(self, page: Any):
        self.page, self.requests, self.problems = page, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on(
            "console",
            lambda message: (
                self.problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on(
            "dialog",
            lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )

    def open(self, path: Path, fragment: str = "") -> Any:
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("body[data-ready=yes]")
        return self.page

    def check(self) -> None:
        assert self.problems == []
        assert [
            url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))
        ] == []
        assert len({url.split("#")[0] for url in self.requests if url.startswith("file:")}) == 1


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    missing = "no Chromium: run scripts/browser.sh" if found is None else ""
    missing = missing if find_spec("playwright") else "no playwright: install the extra dev"
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    elif missing:
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as play:
        one = play.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        yield one
        one.close()


def look(browser: Any) -> Seen:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(2 * PATIENCE)
    return Seen(context.new_page())


@pytest.fixture
def seen(browser: Any) -> Iterator[Seen]:
    """A new window; in every test: no complaint, no request but the file."""
    view = look(browser)
    yield view
    view.page.context.close()
    view.check()


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    view = look(browser)
    view.open(write(tmp_path_factory.mktemp("page") / "small.html", sample()))
    yield view
    view.page.context.close()


@pytest.fixture
def page(opened: Seen) -> Iterator[Any]:
    """One page for the tests that leave it as they found it: starting the drawing library is most
    of their time.
    """
    yield opened.page
    opened.check()


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(render(data), encoding="utf-8")
    return path


def until(page: Any, truth: str) -> None:
    """Waits until an expression holds; compiled once, as the page's policy forbids code made
    later.
    """
    look = f"const look = () => ({truth}) ? done() : requestAnimationFrame(look); look();"
    page.evaluate(
        f"new Promise((done, fail) => {{ setTimeout(() => fail(Error('never')), {PATIENCE}); "
        f"{look} }})"
    )


def names(page: Any, table: str) -> list[str]:
    return page.locator(f"{table} tbody tr > :first-child").all_inner_texts()


def marks(page: Any) -> dict[str, int]:
    """How many marks every plot on show has."""
    page.evaluate("window.coterie.drawAll()")
    until(
        page,
        "[...document.querySelectorAll('.plot')].every(p => p.offsetParent === null || "
        "p.dataset.drawn === 'yes')",
    )
    count = (
        "plots => Object.fromEntries(plots.map(p => [p.parentNode.id, "
        f"p.querySelectorAll({MARKS!r}).length]))"
    )
    return page.locator(".plot:visible").evaluate_all(count)


@pytest.mark.parametrize(("clients", "methods"), [(5, 1), (70, 30)])
def test_every_figure_is_drawn_with_marks(
    seen: Seen, tmp_path: Path, clients: int, methods: int
) -> None:
    data = sample(
        clients,
        ["fedavg"] if methods == 1 else [*SOME, *(f"method-{i}" for i in range(methods - 5))],
    )
    found = marks(seen.open(write(tmp_path / "report.html", data)))
    assert set(found) == {f"figure-{one['key']}" for one in data["figures"]}
    assert min(found.values()) > 0, found


def test_a_thousand_clients_open_on_the_first_screen_alone(seen: Seen, tmp_path: Path) -> None:
    page = seen.open(
        write(tmp_path / "report.html", sample(1000, [*SOME, "ucfl", "apfl", "fedamp"]))
    )
    drawn = page.locator(".plot[data-drawn]").count()
    assert drawn < page.locator(".plot").count()  # the rest waits until it comes near
    page.locator("#figure-each-client").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-each-client .plot[data-drawn]")
    assert page.locator("#figure-each-client .points path").count() == 8000
    assert page.locator("#clients tbody tr").count() == 25


def test_sorting_by_click_and_key_orders_and_says_so(page: Any) -> None:
    rows = {row[0]: row[1] for row in sample()["tables"][0]["rows"]}
    head = page.locator("#table-methods thead th").nth(1)
    head.locator("button").click()
    assert names(page, "#table-methods") == sorted(rows, key=lambda m: -rows[m])
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").press("Enter")
    assert names(page, "#table-methods") == sorted(rows, key=lambda m: rows[m])
    assert head.get_attribute("aria-sort") == "ascending"


def test_the_best_value_is_marked(page: Any) -> None:
    rows = sample()["tables"][0]["rows"]
    best = [max(row[1] for row in rows), min(row[2] for row in rows)]
    found = page.locator("#table-methods td.best").all_inner_texts()
    assert {f"{value:.2f}" for value in best} <= {text.split()[0] for text in found}


def test_the_slider_changes_the_heat_map(page: Any) -> None:
    marks(page)
    values = "document.querySelector('#figure-weights .plot').data[0].z"
    last = sample()["figures"][6]["heat"]["frames"]
    assert page.evaluate(values) == last[2][1]
    page.locator("#figure-weights input[type=range]").press("Home")
    until(
        page,
        f"JSON.stringify({values}) === {json.dumps(json.dumps(last[0][1], separators=(',', ':')))}",
    )
    assert page.locator("#figure-weights output").inner_text() == "round 1"
    page.locator("#figure-weights input[type=range]").press("End")


def test_a_search_finds_a_client_whose_page_opens_and_closes(page: Any) -> None:
    page.locator("#find-client").fill("CLIENT 4")
    assert names(page, "#clients") == ["client 4"]
    page.locator("#clients tbody a").scroll_into_view_if_needed()
    before = page.evaluate("window.scrollY")
    assert before > 0
    page.locator("#clients tbody a").click()
    page.wait_for_selector("#client h2")
    assert page.url.endswith("#client-4")
    assert page.locator("#client h2").inner_text() == "client 4"
    assert min(marks(page).values()) > 0
    page.locator("#client .peers a").first.click()
    until(page, "document.querySelector('#client h2').textContent !== 'client 4'")
    page.go_back()
    until(page, "document.querySelector('#client h2').textContent === 'client 4'")
    page.go_back()
    page.wait_for_selector("#report", state="visible")
    assert page.locator("#client").is_hidden()
    assert abs(page.evaluate("window.scrollY") - before) < 5
    page.locator("#find-client").fill("")


def test_a_client_page_opens_by_its_address(seen: Seen, tmp_path: Path) -> None:
    page = seen.open(write(tmp_path / "report.html", sample()), "#client-2")
    assert page.locator("#client h2").inner_text() == "client 2"
    assert page.locator("#client table tbody tr").count() == len(SOME)
    assert "0.3" in page.locator("#client .pairs").inner_text()


def test_the_theme_follows_the_system_and_the_button(page: Any) -> None:
    marks(page)
    shade = "getComputedStyle(document.body).backgroundColor"
    curve = "document.querySelector('#figure-deviation .point path').style.fill"
    light = page.evaluate(shade), page.evaluate(curve)
    for dark, back in (
        (
            lambda: page.emulate_media(color_scheme="dark"),
            lambda: page.emulate_media(color_scheme="light"),
        ),
        (page.locator("#theme").click, page.locator("#theme").click),
    ):
        dark()
        until(page, f"{curve} !== {light[1]!r}")
        assert page.evaluate(shade) != light[0]
        back()
        until(page, f"{curve} === {light[1]!r}")
        assert page.evaluate(shade) == light[0]


def test_the_chooser_and_the_legend_hide_methods(page: Any) -> None:
    marks(page)
    curves = (
        "document.querySelector('#figure-accuracy-by-round .plot').data.filter(t => t.name).map(t "
        "=> t.name)"
    )
    bars = "document.querySelectorAll('#figure-deviation .points .point').length"
    page.locator("#chooser input[value=ditto]").uncheck()
    until(page, f"!{curves}.includes('ditto') && {bars} === 4")
    page.locator("#figure-accuracy-by-round .legend button", has_text="fedavg").click()
    until(page, f"!{curves}.includes('fedavg')")
    assert page.evaluate(bars) == 4  # a legend speaks for its own figure
    assert page.locator("#clients thead").inner_text().count("ditto") == 0
    page.locator("#figure-accuracy-by-round .legend button", has_text="fedavg").click()
    page.get_by_role("button", name="All", exact=True).click()
    until(page, f"{curves}.length === {len(SOME)} && {bars} === {len(SOME)}")


def test_of_many_methods_those_of_the_answer_and_the_baselines_come_first(
    seen: Seen, tmp_path: Path
) -> None:
    many = [*(f"method-{i}" for i in range(28)), "fedavg", "local"]
    data = sample(6, many) | {"answer": ["Use method-17, which beats method-2."]}
    page = seen.open(write(tmp_path / "report.html", data))
    chosen = page.locator("#chooser input:checked").evaluate_all("boxes => boxes.map(b => b.value)")
    assert chosen[:4] == ["method-17", "method-2", "fedavg", "local"]
    assert len(chosen) == 8
    page.get_by_role("button", name="All", exact=True).click()
    page.locator("#figure-accuracy-by-round").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-accuracy-by-round .plot[data-drawn]")
    looks = page.evaluate(
        "document.querySelector('#figure-accuracy-by-round .plot').data.filter(t => t.name).map(t "
        "=> t.line.color + t.line.dash)"
    )
    assert len(set(looks)) == 30


def test_a_narrow_window_does_not_scroll_sideways(seen: Seen, tmp_path: Path) -> None:
    long = [f"{name}@a-rather-long-label-of-a-variant" for name in SOME]
    seen.page.set_viewport_size({"width": 400, "height": 800})
    page = seen.open(
        write(
            tmp_path / "report.html",
            sample(6, long, [f"hospital-{'x' * 40}-{i}" for i in range(6)]),
        )
    )
    for _ in ("the report", "a client"):
        marks(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.locator("#clients tbody a").first.evaluate("link => link.click()")
        page.wait_for_selector("#client h2")
    assert page.locator("#report").is_hidden()


def test_hostile_names_do_no_harm_and_are_shown_as_they_are(seen: Seen, tmp_path: Path) -> None:
    data = sample(len(HOSTILE), SOME, HOSTILE) | {
        "title": HOSTILE[1],
        "answer": [HOSTILE[0]],
        "warnings": [HOSTILE[2]],
    }
    page = seen.open(write(tmp_path / "report.html", data))
    assert min(marks(page).values()) > 0
    assert page.locator("h1").inner_text() == HOSTILE[1]
    assert page.locator("#clients tbody a").all_text_contents() == HOSTILE
    assert page.locator("img, #report b").count() == 0
    ticks = page.locator("#figure-each-client .xtick text").all_text_contents()
    assert ticks[5:] == HOSTILE[5:]
    assert ticks[3].startswith("a&amp;b")
    page.goto(page.url.split("#")[0] + "#client-0")
    page.wait_for_selector("#client h2")
    assert page.locator("#client h2").inner_text() == HOSTILE[0]
    assert min(marks(page).values()) > 0


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_figure_is_saved_as_a_picture(page: Any, tmp_path: Path, kind: str) -> None:
    with page.expect_download() as waiting:
        page.locator("#figure-accuracy-by-round").get_by_role("button", name=kind.upper()).click()
    waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
    head = (tmp_path / f"accuracy-by-round.{kind}").read_bytes()[:8]
    assert head == b"\x89PNG\r\n\x1a\n" if kind == "png" else head.startswith(b"<svg")


def test_a_run_shows_its_configuration_and_how_to_repeat_it(page: Any) -> None:
    run = page.locator("#configuration details").first
    run.locator("summary").click()
    page.wait_for_selector("#configuration pre")
    text = run.inner_text()
    assert "rounds = 12" in text
    assert "coterie run --config config.toml" in text
    assert "torch 2" in text


def test_paper_gets_every_figure_in_light_and_the_screen_its_theme_back(
    seen: Seen, tmp_path: Path
) -> None:
    seen.page.emulate_media(color_scheme="dark")
    page = seen.open(write(tmp_path / "report.html", sample()))
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(
        page,
        "document.querySelectorAll('.plot[data-drawn]').length === "
        "document.querySelectorAll('.plot').length",
    )
    assert page.evaluate(ground) != dark
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(ground) == dark


def test_a_report_of_nothing_is_still_a_page(seen: Seen, tmp_path: Path) -> None:
    page = seen.open(write(tmp_path / "report.html", {"title": "Empty"}))
    assert page.locator("h1").inner_text() == "Empty"


def test_the_embedded_data_is_the_data() -> None:
    data = {
        "names": [*HOSTILE, "\u2029", "Zürich", "日本", "\ud800"],
        "values": [1.5, float("nan"), float("inf"), (1, None)],
    }
    text = embed(data)
    assert not re.search("[<>&\u2028\u2029]", text)
    back = json.loads(text.encode())
    assert back["names"][:-1] == data["names"][:-1]
    assert back["values"] == [1.5, None, None, [1, None]]
