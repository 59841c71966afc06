"""A site's own answers, to a server that asks whatever it likes: what gets out is what was agreed
to, once.
"""

import json

import numpy as np
import pytest
import torch

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.core.errors import BadInput
from coterie.core.point import Point
from coterie.deploy.accountant import REPLACED, UNCHANGED, Accountant
from coterie.deploy.answers import MAX_ANSWERS
from coterie.deploy.config_files import (
    DataShape,
    Limits,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    SiteConfig,
    Sites,
    SiteSettings,
    combine_privacy,
    read_site,
    write_server,
    write_site,
)
from coterie.deploy.consent import Consent, digest_of
from coterie.deploy.disclosure import round_score
from coterie.engines.base import Moment
from coterie.experiment.toml import to_toml
from helpers.town import Lines

# isort: split
from coterie.deploy import server_app, wire
from coterie.deploy.site import open_site

DOSES, ROUNDS = 90, 20
PLAIN, NOISY, LIMITS = Privacy(), Privacy(1.0, 2.0), Limits()


class Clinic:
    """A site with 90 patients and a server that crafts its own messages."""

    def __init__(self, folder, limits=LIMITS, asked=PLAIN, **shape):
        self.folder, self.lines = folder / "site", Lines()
        rng = np.random.default_rng(0)
        self.outcome = rng.integers(0, 2, DOSES)
        rows = [f"{dose},{y}" for dose, y in enumerate(self.outcome)]
        self.file = folder / "rows.csv"
        self.file.write_text("\n".join(["dose,label", *rng.permutation(rows)]))
        self.folder.mkdir()
        home = SiteSettings("north", data=str(self.file))
        write_site(self.folder, SiteConfig(home, PLAIN, limits))
        server = folder / "server"
        server.mkdir()
        write_server(
            server,
            ServerConfig(
                ServerAddress(), Sites(("north", "south")), Rules(), DataShape(2, 1, **shape), asked
            ),
        )
        settings = {"method": "fedavg", "model": {"name": "mlr"}, "schedule": {"rounds": ROUNDS}}
        (server / "experiment.toml").write_text(to_toml(settings))
        self.plan = server_app.read_server_plan(server)
        self.settings, self.site = self.plan.settings, self.open()
        self.rows = self.ask("hello")[0]["rows"]

    def open(self, **consent):
        agree = (Consent(self.folder, self.lines, **consent),) if consent else ()
        return open_site(self.folder, self.lines, *agree)

    def crafted(self, threshold=0.0, slope=0.0):
        """A model that takes every dose from the threshold on for outcome 1."""
        point = self.plan.draft.models[0].start(0)
        weight, bias = sorted(point.params, key=lambda name: "bias" in name)
        made = {weight: [[0.0], [slope]], bias: [0.0, -slope * (threshold - 0.5)]}
        return Point({k: torch.tensor(made[k]) for k in point.params})

    def ask(self, kind, payload=(), **changes):
        """The head and the body of a reply."""
        head = {"kind": kind, "words": self.settings, "run": "abcdef01", "site": 0, "name": "north"}
        head |= {"stage": 0, "round": 0, "base": None, "exchange": 0, "keep": []}
        head |= {"rows": getattr(self, "rows", {}), "parts": ["train"], "final": False}
        frame = self.site.answer(wire.pack(head | changes, payload))
        return json.loads(frame.head), frame.body

    def train(self, threshold=0.0, **changes):
        return self.ask("train", self.crafted(threshold, 1.0), **changes)

    def accuracy(self, threshold, **changes):
        head, _ = self.ask("evaluate", self.crafted(threshold, 1e3), **changes)
        found = {metric: v for _, _, metric, v in head.get("values", [])}
        return found.get("accuracy"), head["error"]


# Evaluations


def pairs_of(answers, rows):
    """The (dose, outcome) pairs that counts of right predictions above and below a dose tell."""
    found = set()
    for dose in range(DOSES):
        if None not in (answers.get(dose), answers.get(dose + 1)):
            step = round((answers[dose + 1] - answers[dose]) * rows)
            found |= {(dose, 0)} if step == 1 else {(dose, 1)} if step == -1 else set()
    return found


def test_crafted_models_do_not_read_rows_out_of_evaluations(tmp_path):
    """An evaluation of a crafted model is a counting query: asked freely, 91 of them tell every
    row. A site answers those that were agreed to, as precisely as its rows can tell.
    """
    clinic = Clinic(tmp_path)
    engine, federation = clinic.site.engine(clinic.settings, 0)
    mine = federation.train[0]
    truth = {(int(federation.x[k, 0]), int(federation.y[k])) for k in mine}
    exact = {}
    for t in range(DOSES + 1):
        model = clinic.crafted(t, 1e3)
        when = Moment(engine.programs[0][0].name, 0)
        found = engine.evaluate([0], lambda _, model=model: model, when, ["train"])
        exact[t] = float(found["personal", "train", "accuracy"][0])
    assert pairs_of(exact, len(mine)) == truth  # the attack is a real one

    clinic.site = clinic.open(accept=True)
    got, tries, answered = {}, 0, 0
    ways = [{"round": k} for k in range(1, ROUNDS + 30)]  # forwards, and past the end
    ways += [{"round": k} for k in range(1, ROUNDS + 1)]  # again, backwards, as other messages
    ways += [{"round": k, "final": True, "refused": "x"} for k in range(ROUNDS, 0, -1)]
    ways += [{"round": 1, "run": f"{k:08x}", "site": k % 2} for k in range(100)]
    ways += [{"round": 1, "run": f"{k:08x}"} for k in range(100)]
    for way in ways:
        for part in ("train", "select"):
            value, error = clinic.accuracy(tries % (DOSES + 1), parts=[part], **way)
            tries += 1
            if value is not None and part == "train":
                got[(tries - 1) % (DOSES + 1)] = value
                answered += 1
            assert error or value is not None or clinic.rows[part] < 10
    assert tries > 364
    assert answered == ROUNDS
    assert not pairs_of(got, len(mine)) & truth


def test_a_part_is_measured_once_in_a_round_and_rounds_go_forwards(tmp_path):
    clinic = Clinic(tmp_path)
    first, _ = clinic.accuracy(30, round=2)
    assert first is not None
    assert clinic.accuracy(30, round=2) == (first, "")  # the same model, the same number
    clinic.site = clinic.open()  # and after a restart
    assert clinic.accuracy(30, round=2) == (first, "")
    assert "has measured another model" in clinic.accuracy(31, round=2)[1]
    assert "has measured a later round" in clinic.accuracy(31, round=1)[1]
    assert clinic.accuracy(31, round=3)[0] is not None
    assert "agreed to 20" in clinic.accuracy(31, round=21)[1]
    assert "another number of this site" in clinic.accuracy(31, round=4, site=1)[1]
    clinic.settings = clinic.settings | {"eval_every": 5, "parts": ["test"]}
    told = [clinic.accuracy(0, round=k, run="abcdef02")[1] for k in (1, 5)]
    assert all("not part of what this site has agreed to" in line for line in told)


def test_a_run_is_agreed_to_once(tmp_path):
    clinic = Clinic(tmp_path)
    clinic.site = clinic.open(accept=True)
    assert clinic.train()[0]["error"] == ""
    clinic.site = clinic.open(accept=False)
    assert clinic.train(round=1)[0]["error"] == ""  # it goes on after a restart
    assert "agreed to one run of it" in clinic.train(run="abcdef02")[0]["error"]
    clinic.site = clinic.open(accept=True)
    assert clinic.train(run="abcdef02")[0]["error"] == ""
    assert "agreed to one run of it" in clinic.train(run="abcdef03")[0]["error"]


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ditto"},
        {"stages": [{"name": "train", "rounds": 400, "messages": 1}]},
        {"stages": [{"name": "train", "rounds": 20, "messages": 2}]},
        {"eval_every": 2},
        {"parts": ["train", "test"]},
        {"privacy": [0.0, 0.0, 1e-5, True]},
    ],
)
def test_an_agreement_covers_method_rounds_messages_and_what_is_measured(change, tmp_path):
    clinic = Clinic(tmp_path)
    assert digest_of(clinic.settings) != digest_of(clinic.settings | change)
    clinic.site = clinic.open(accept=True)
    assert clinic.ask("hello")[0]["error"] == ""
    clinic.settings = clinic.settings | change
    assert "has not agreed" in clinic.ask("hello")[0]["error"]


def test_scores_and_sums_of_few_rows_stay_at_home(tmp_path):
    clinic = Clinic(tmp_path, scale="standard", test=0.05, validation=0.1)
    assert clinic.rows["test"] < 10 <= clinic.rows["train"]
    head, _ = clinic.ask("evaluate", clinic.crafted(), round=1, parts=["train", "test"])
    assert {part for _, part, _, _ in head["values"]} == {"train"}
    assert clinic.ask("moments")[0]["error"] == ""
    few = tmp_path / "few"
    few.mkdir()
    small = Clinic(few, limits=Limits(rows=1000), scale="standard")
    assert "fewer than 1000 training rows" in small.ask("moments")[0]["error"]
    assert small.ask("evaluate", small.crafted(), round=1)[0]["values"] == []


def test_sums_of_columns_are_told_of_the_same_rows_only(tmp_path):
    """Another number of the site is another cut of its rows, and the difference of two sums may be
    one row.
    """
    clinic = Clinic(tmp_path, scale="standard")
    _, body = clinic.ask("moments")
    assert clinic.ask("moments")[1] == body
    assert "of other rows" in clinic.ask("moments", site=1)[0]["error"]
    clinic.file.write_text(clinic.file.read_text().replace("\n7,", "\n8,"))
    clinic.site = clinic.open()
    assert "of other rows" in clinic.ask("moments")[0]["error"]


@pytest.mark.parametrize(
    ("value", "rows", "told"),
    [(0.5185, 54, 0.5), (0.5185, 10_000, 0.52), (1234.5, 54, 1250.0), (-0.31, 54, -0.3)],
)
def test_a_score_is_as_precise_as_its_rows(value, rows, told):
    assert round_score(value, rows, 3) == pytest.approx(told)
    assert round_score(value, rows, 0) == value


def test_measures_stay_at_home_where_noise_is_on_unless_both_sides_say_so():
    assert combine_privacy(Privacy(), Privacy()).sends_measures
    assert not combine_privacy(NOISY, Privacy()).sends_measures
    assert not combine_privacy(Privacy(), NOISY).sends_measures
    assert combine_privacy(NOISY._replace(measures=True), Privacy()).sends_measures
    assert not combine_privacy(
        NOISY._replace(measures=True), Privacy(measures=False)
    ).sends_measures


# Epsilon


def test_a_question_asked_200_times_gets_the_same_bytes_and_costs_nothing(tmp_path):
    clinic = Clinic(tmp_path, asked=NOISY)
    head, body = clinic.train()
    once = clinic.site.accountant.epsilon(UNCHANGED)
    assert once == pytest.approx(epsilon_of(2.0, 1, 1e-5))
    for k in range(200):
        if k == 100:
            clinic.site = clinic.open()  # as after a restart
        again, same = clinic.train(refused=f"try {k}", keep=[])
        assert same == body
        assert again | {"seconds": 0} == head | {"seconds": 0}
    assert clinic.site.accountant.epsilon(UNCHANGED) == once


def test_epsilon_counts_every_upload_that_left_and_no_more_leave_than_may(tmp_path):
    clinic = Clinic(tmp_path, asked=NOISY)
    left = set()
    for t in range(200):  # other questions in the same round: each is an upload of its own
        head, body = clinic.train(t)
        left |= {body} if not head["error"] else set()
    assert len(left) == MAX_ANSWERS
    assert "answers no more" in head["error"]
    for k in range(1, 4):  # and rounds that are repeated
        left |= {clinic.train(0, round=k)[1], clinic.train(1, round=k)[1]}
    counted = clinic.site.accountant
    assert counted.uploads == len(left) == MAX_ANSWERS + 6
    assert counted.epsilon(UNCHANGED) == pytest.approx(epsilon_of(2.0, len(left), 1e-5))
    again = clinic.open().accountant  # what is on the disk says the same
    assert again.epsilon() == counted.epsilon()


def test_an_upload_that_is_kept_no_more_is_not_noised_anew_for_ever(tmp_path):
    """Two rounds asked for in turn: each makes the site forget the other's upload."""
    clinic = Clinic(tmp_path, asked=NOISY)
    told = [clinic.train(round=k % 2) for k in range(200)]
    left = {body for head, body in told if not head["error"]}
    assert len(left) == clinic.site.accountant.uploads == 2 * MAX_ANSWERS
    assert "answers no more" in told[-2][0]["error"]


def test_updates_that_overflow_where_a_row_is_do_not_read_rows_out(tmp_path):
    """Finite or not is an answer: doses up to a threshold leave such a model finite."""
    clinic = Clinic(tmp_path)
    told = [clinic.ask("train", clinic.crafted(t, 3e38))[0] for t in range(200)]
    assert "not finite" in told[0]["error"]
    clinic.site = clinic.open()  # and after a restart
    told += [clinic.ask("train", clinic.crafted(t, 3e38))[0] for t in range(200)]
    heard = [head for head in told if "answers no more" not in head["error"]]
    assert len(heard) == MAX_ANSWERS


def test_a_site_stops_when_its_budget_is_spent(tmp_path):
    one = Accountant([], 1e-5)
    for _ in range(3):
        one.count(2.0)
    clinic = Clinic(tmp_path, limits=Limits(epsilon=one.epsilon() * 1.001), asked=NOISY)
    told = [clinic.train(round=k)[0]["error"] for k in range(5)]
    assert told[:3] == [""] * 3
    assert all("budget of epsilon" in line for line in told[3:])
    clinic.site = clinic.open()
    assert "is spent" in clinic.train(round=3)[0]["error"]
    assert clinic.site.accountant.epsilon() <= one.epsilon() * 1.001


def test_a_budget_lets_nothing_out_that_noise_does_not_cover(tmp_path):
    clinic = Clinic(tmp_path, limits=Limits(epsilon=8.0), scale="standard")
    assert "without noise" in clinic.train()[0]["error"]
    assert "lets no mean" in clinic.ask("moments")[0]["error"]
    assert clinic.ask("evaluate", clinic.crafted(), round=1)[0]["values"] == []
    site = read_site(clinic.folder)
    write_site(clinic.folder, site._replace(privacy=Privacy(measures=True)))
    with pytest.raises(BadInput, match="noise does not cover scores"):
        read_site(clinic.folder)


def test_the_line_says_what_a_neighbour_is():
    counted = Accountant([], 1e-5)
    for _ in range(10):
        counted.count(1.0)
    assert counted.epsilon(UNCHANGED) == pytest.approx(17.9, abs=0.05)
    assert counted.epsilon(REPLACED) == pytest.approx(46.2, abs=0.05)
    assert "unchanged" in counted.sentence()
    assert "any other site in its place" in counted.sentence()
    assert f"{counted.epsilon(UNCHANGED):.4g}" in counted.sentence()
    assert f"{counted.epsilon(REPLACED):.4g}" in counted.sentence()


# What else leaves


def test_errors_leave_a_site_without_paths_and_values(tmp_path):
    clinic = Clinic(tmp_path)
    rows = clinic.file.read_text().splitlines()
    cases = {
        "777": [*rows[:-1], "88,777"],  # a label that nobody knows
        "3.25": [*rows[:-1], "88,3.25"],
    }
    for value, lines in cases.items():
        clinic.file.write_text("\n".join(lines))
        clinic.site = clinic.open()
        error = clinic.ask("hello")[0]["error"]
        assert error
        assert value not in error
        assert str(tmp_path) not in error
        assert clinic.lines.has("refused a message", value, str(clinic.file))
    clinic.file.write_text("\n".join(rows))
    clinic.site = clinic.open()
    model = clinic.folder / "model.safetensors"
    model.mkdir()  # it cannot be written
    error = clinic.ask("evaluate", clinic.crafted(), round=1)[0]["error"]
    assert error == "cannot answer: its own log says why"
    assert clinic.lines.has("refused a message", str(clinic.folder))


def test_words_of_a_server_are_printable_at_a_site(tmp_path):
    clinic = Clinic(tmp_path)
    clinic.ask("\x1b[2J")
    clinic.train(refused="\x1b]0;owned\x07")
    assert clinic.lines.has("of kind '\\x1b[2J'")
    assert clinic.lines.has("the last reply. \\x1b]0;owned\\x07")
    assert all(line.isprintable() for line in clinic.lines)


def test_rows_that_change_in_a_run_are_one_line(tmp_path):
    clinic = Clinic(tmp_path)
    assert clinic.train()[0]["error"] == ""
    text = clinic.file.read_text()
    clinic.file.write_text(text.replace("\n7,", "\n8,"))
    clinic.site = clinic.open()
    for k in range(1, 4):
        assert clinic.train(round=k)[0]["error"] == ""
    assert sum("have changed since the run" in line for line in clinic.lines) == 1


def test_a_missing_consent_is_one_line(tmp_path):
    clinic = Clinic(tmp_path)
    clinic.site = clinic.open(accept=False)
    before = len(clinic.lines)
    for _ in range(20):
        assert "has not agreed" in clinic.ask("hello")[0]["error"]
    (line,) = clinic.lines[before:]
    assert "fedavg" in line
    assert "stages" in line


def test_a_server_of_another_version_is_refused(tmp_path):
    clinic = Clinic(tmp_path)
    assert "install the same version" in clinic.ask("hello", version="0.0.1")[0]["error"]
