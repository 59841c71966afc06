"""Labels: what people say of runs is kept beside them, whole or not at all, and touches no run."""

import json
import threading

import pytest

from coterie.core.errors import BadInput
from coterie.core.files import digest
from coterie.ui.labels import FILE, Label, Labels, parse_label
from helpers.ui import writer


def files(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): digest(p) for p in folder.rglob("*") if p.is_file()}


def test_a_label_lies_beside_the_runs_and_no_file_of_a_run_changes(root):
    before = files(root)
    asker = writer(root)
    settings = {"id": "single", "name": "The first", "tags": ["good", " good ", "x"], "note": "why"}
    said = asker.post("/api/label", json=settings)
    assert said.json()["label"] == {
        "name": "The first",
        "tags": ["good", "x"],
        "note": "why",
        "archived": False,
    }
    assert asker.post("/api/label", json={"id": "single", "archived": True}).status_code == 200
    runs = {run["id"]: run for run in asker.get("/api/runs").json()["runs"]}
    assert runs["single"]["label"] == said.json()["label"] | {"archived": True}
    assert runs["both"]["label"] == Label()._asdict() | {"tags": []}
    assert files(root) == before | {FILE: digest(root / FILE)}


def test_an_empty_label_is_forgotten(root):
    labels = Labels(root)
    labels.change("single", {"note": "a"})
    labels.change("both", {"note": "b"})
    labels.change("single", {"note": ""})
    assert list(json.loads((root / FILE).read_text())) == ["both"]


def test_many_writers_lose_nothing(tmp_path):
    labels = Labels(tmp_path)
    threads = [
        threading.Thread(target=labels.change, args=(f"run{k}", {"name": str(k)}))
        for k in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Labels(tmp_path).read() == {f"run{k}": Label(name=str(k)) for k in range(20)}
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": 3},
        {"name": "x" * 121},
        {"note": "x" * 4001},
        {"tags": "a,b"},
        {"tags": [1]},
        {"tags": ["x" * 41]},
        {"tags": [str(k) for k in range(21)]},
        {"archived": "yes"},
        {"colour": "red"},
    ],
)
def test_what_is_no_label_is_refused(root, settings):
    with pytest.raises(BadInput):
        parse_label(settings)
    said = writer(root).post("/api/label", json={"id": "single"} | settings)
    assert said.status_code == 422
    assert not (root / FILE).exists()


@pytest.mark.parametrize("text", ["{", '{"single": 3}', "[]", '{"single": {"name": 1}}'])
def test_a_damaged_file_is_told_and_never_written_over(root, text):
    (root / FILE).write_text(text)
    asker = writer(root)
    said = asker.get("/api/runs").json()
    assert len(said["runs"]) == 4
    assert said["trouble"].startswith(f"{FILE} is damaged")
    assert asker.post("/api/label", json={"id": "single", "note": "a"}).status_code == 422
    assert (root / FILE).read_text() == text


def test_nothing_is_put_into_a_run(root):
    said = writer(root / "single").post("/api/label", json={"id": ".", "note": "a"})
    assert said.status_code == 422
    assert "open coterie ui on the folder around it" in said.json()["problem"]
    assert not (root / "single" / FILE).exists()


def test_only_runs_of_the_list_have_labels(root):
    assert writer(root).post("/api/label", json={"id": "../x", "note": "a"}).status_code == 404
    assert writer(root).post("/api/label", json={"id": 3, "note": "a"}).status_code == 422
