"""Figures of notes: a method that nobody knows gets a figure for every note it declares, without a
line in reports.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.experiment.config import Experiment, change_options
from coterie.methods.fedavg import fedavg
from coterie.methods.registry import METHODS
from coterie.reports import report
from coterie.reports.report import report_data
from coterie.running.execute import execute

CLIENTS, ROUNDS = 4, 3
WORDS = {
    "dataset": "digits",
    "num_clients": CLIENTS,
    "rounds": ROUNDS,
    "eval_every": 1,
    "batch_size": 64,
}
FAST = {"path": "vectorized", "width": 8, "compile": "no", "threads": 1}
DESCRIBES = {
    "m": LoggedQuantity("trust in others", QuantityKind.MATRIX, meaning="Made up."),
    "g": LoggedQuantity("teams of the server", QuantityKind.GROUPS),
    "own_g": LoggedQuantity("teams of the clients", QuantityKind.GROUPS),
    "e": LoggedQuantity("fingerprints", QuantityKind.VECTORS),
    "r": LoggedQuantity(
        "mood of the clients", QuantityKind.COURSE, "smiles", "How a client feels.", log=True
    ),
    "n": LoggedQuantity("age seen by the server", QuantityKind.COURSE),
    "h": LoggedQuantity("tired clients", QuantityKind.SHARE),
    "T": LoggedQuantity("shoe size", QuantityKind.FINAL),
    "lambda": LoggedQuantity("hat size", QuantityKind.FINAL, "%"),
    "s": LoggedQuantity("weather", QuantityKind.SERVER),
    "gap": LoggedQuantity("quarrels", QuantityKind.PAIR, "per day"),
    "peace": LoggedQuantity("treaties", QuantityKind.PAIR),
    "try": LoggedQuantity("taste of the cake", QuantityKind.GRID, "%", "Of every recipe."),
    "old": LoggedQuantity("yesterday's model", QuantityKind.VIEW),
}
EYE = torch.eye(CLIENTS)


def server_notes(server: Any) -> dict[str, Any]:
    return {
        "m": EYE.roll(1, 1) * 0.25 + EYE * 0.75,
        "g": torch.tensor([0, 0, 1, 1]),
        "e": torch.arange(2.0 * CLIENTS).reshape(CLIENTS, 2) - 3,
        "n": torch.arange(1.0 * CLIENTS),
        "lambda": torch.full((CLIENTS,), 0.25),
        "s": torch.tensor(7.0),
        "peace_before": torch.tensor(1.0),
        "peace_after": torch.tensor(2.0),
    }


def client_notes(state: Any) -> dict[str, Any]:
    grid = {
        f"try[sugar={a},milk={b}]": torch.tensor(0.1 * a + 0.01 * b)
        for a in (1, 2)
        for b in (5, 10)
    }
    pair = {"gap_before": torch.tensor(5.0), "gap_after": torch.tensor(3.0)}
    rest = {"own_g": 1, "r": 100.0, "h": 1.0, "T": 42.0}
    return {**{k: torch.tensor(v) for k, v in rest.items()}, **pair, **grid}


def stranger(model, train):
    """Everything that can be noted."""
    base = fedavg(model, train)
    notes = {"notes": server_notes, "client_notes": client_notes, "describes": DESCRIBES}
    return base._replace(views={"old": lambda state, w: w}, **notes)


def play(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: Any = stranger, seed: int = 0
) -> Path:
    monkeypatch.setitem(METHODS, "stranger", method)
    execute(change_options(Experiment(method="stranger"), WORDS | FAST | {"seed": seed}), folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A report made where another method goes by the name: all is read from the run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = play(tmp_path_factory.mktemp("stranger") / "run", patch)
        patch.setitem(METHODS, "stranger", lambda model, train: fedavg(model, train))
        return report_data([folder])


def figure(data: dict, key: str) -> dict:
    return next(f for f in data["figures"] if f["key"] == f"{key}-stranger")


def test_every_declared_note_has_a_figure_with_its_label_and_meaning(data):
    for name, note in DESCRIBES.items():
        if note.kind is QuantityKind.VIEW:
            continue
        found = figure(data, name)
        assert note.label in found["title"].lower()
        assert note.meaning in found["note"]
        assert note.unit in found["y"] + found["x"] + str(found["heat"])


def test_lines_show_the_numbers_that_were_noted(data):
    def ends(key: str) -> dict[str, float]:
        return {s["name"]: s["y"][-1] for s in figure(data, key)["series"]}

    assert ends("r") == {"stranger": 2}  # log10 of 100
    assert ends("n") == {"stranger": 1.5}
    assert ends("h") == {"stranger": 100}
    assert ends("s") == {"stranger": 7}
    assert ends("gap") == {"before": 5, "after": 3}
    assert ends("peace") == {"before": 1, "after": 2}
    assert all(
        s["x"] == [1, 2, 3]
        for key in ("r", "n", "h", "s", "gap")
        for s in figure(data, key)["series"]
    )


def test_dots_show_every_client(data):
    assert figure(data, "T")["series"][0]["y"] == [42] * CLIENTS
    assert figure(data, "lambda")["series"][0]["y"] == [25] * CLIENTS  # a share, shown in %


def test_maps_show_matrices_groups_vectors_and_grids(data):
    trust = np.array(figure(data, "m")["heat"]["frames"][-1][1], dtype=float)
    assert (trust == 0.25).sum() == CLIENTS
    teams = np.array(figure(data, "g")["heat"]["frames"][-1][1], dtype=float)
    assert teams[0, 1] == teams[2, 3] == 0.5
    assert teams[0, 2] == 0
    alike = np.array(figure(data, "own_g")["heat"]["frames"][-1][1], dtype=float)
    assert alike[0, 1] == alike[0, 3] == 0.25
    assert figure(data, "e")["heat"]["frames"][-1][1][0] == [-3, -2]
    grid = figure(data, "try")
    assert (grid["y"], grid["x"]) == ("sugar", "milk")
    assert (grid["heat"]["rows"], grid["heat"]["columns"]) == (["1", "2"], ["5", "10"])
    assert grid["heat"]["frames"][0][1] == [
        [pytest.approx(15), pytest.approx(20)],
        [pytest.approx(25), pytest.approx(30)],
    ]


def test_a_client_page_names_notes_by_their_labels_and_peers_by_the_matrix(data):
    noted = dict(data["clients"]["notes"]["stranger"])
    assert noted["shoe size"] == [42] * CLIENTS
    assert noted["hat size (%)"] == [25] * CLIENTS
    assert noted["quarrels, before (per day)"] == [5] * CLIENTS
    assert data["clients"]["learned_from"]["stranger"][0] == [[1, 0.25]]


def test_a_view_has_one_name_and_its_words(data):
    rows = next(t for t in data["tables"] if t["key"] == "other-views")["rows"]
    assert [(row[1], row[3]) for row in rows] == [
        ("personal", "the client's own model"),
        ("old", "yesterday's model"),
    ]


def test_methods_that_declare_a_note_alike_share_its_figure(tmp_path, monkeypatch):
    folder = play(tmp_path / "a", monkeypatch)
    monkeypatch.setitem(METHODS, "twin", stranger)
    execute(change_options(Experiment(method="twin"), WORDS | FAST), tmp_path / "b")
    data = report_data([folder, tmp_path / "b"])
    assert [s["name"] for s in figure(data, "T")["series"]] == ["stranger", "twin"]
    assert {f["key"] for f in data["figures"] if f["title"].startswith("Trust")} == {
        "m-stranger",
        "m-twin",
    }


@pytest.mark.parametrize("who", ["notes", "client_notes"])
def test_a_note_that_is_not_declared_stops_the_run_at_once(tmp_path, monkeypatch, who):
    def silent(model, train):
        return fedavg(model, train)._replace(
            **{who: lambda state: {"secret": torch.ones(CLIENTS) if who == "notes" else 1.0}}
        )

    with pytest.raises(BadInput, match="the logged quantity 'secret' is not declared"):
        play(tmp_path / "run", monkeypatch, silent)
    assert (tmp_path / "run").exists() == (
        who == "client_notes"
    )  # a server's is known before the run starts


def test_reports_know_no_method_by_name():
    """Of methods it knows only the two that gains are measured over; all else comes from the
    runs.
    """
    settings = set(METHODS) - {"local", "fedavg"}
    for file in Path(report.__file__).parent.rglob("*"):
        if file.suffix in (".py", ".js"):
            text = file.read_text(encoding="utf-8").lower()
            assert not [option for option in settings if f'"{option}"' in text], file
