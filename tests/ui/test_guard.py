"""Changes: only with the token, only from the server's own pages, and short."""

import pytest

from coterie.ui.access import MAX_BODY
from helpers.ui import HERE, TOKEN, client

LABEL = {"id": "single", "note": "a"}


@pytest.fixture
def visitor(root):
    """A browser that has opened the printed address."""
    asker = client(root, token=TOKEN)
    asker.get("/", params={"token": TOKEN})
    return asker


def test_a_page_with_the_cookie_may_change(visitor):
    said = visitor.post("/api/label", json=LABEL, headers={"Origin": HERE})
    assert said.status_code == 200
    assert visitor.get("/api/runs").json()["may_write"]


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a form of another page sends a cookie, but browsers say where it comes from
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": HERE, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_origin_changes_nothing(visitor, root, headers):
    assert visitor.post("/api/label", json=LABEL, headers=headers).status_code == 403
    assert not (root / "ui-labels.json").exists()


def test_a_token_of_another_origin_is_no_better(root):
    asker = client(root, token=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}
    assert asker.post("/api/label", json=LABEL, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["label", "start", "stop", "resume"])
def test_changes_need_the_token_even_where_reading_does_not(root, path):
    for token in ("", TOKEN):
        asker = client(root, token=token)
        said = asker.post(f"/api/{path}", json={"id": "single"}, headers={"Origin": HERE})
        assert said.status_code == (401 if token else 405)
        wrong = {"Authorization": "Bearer wrong"}
        assert asker.post(f"/api/{path}", json={}, headers=wrong).status_code in (401, 405)
    assert asker.get(f"/api/{path}").status_code == 401


def test_a_change_is_posted_json_of_bounded_length(visitor):
    origin = {"Origin": HERE}
    form = visitor.post("/api/label", data={"id": "single"}, headers=origin)
    assert form.status_code == 415
    long = visitor.post("/api/label", json={"note": "x" * MAX_BODY}, headers=origin)
    assert long.status_code == 413

    def piecemeal():
        yield b"{}"

    kind = origin | {"Content-Type": "application/json"}
    assert visitor.post("/api/label", content=piecemeal(), headers=kind).status_code == 411
    for text in ("{", "[]", "3", "[" * 50_000):
        assert visitor.post("/api/label", content=text, headers=kind).status_code == 422
    assert visitor.put("/api/label", json=LABEL, headers=origin).status_code == 405
    assert visitor.get("/api/label").status_code in (404, 405)
