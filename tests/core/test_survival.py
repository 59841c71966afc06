"""Laws of survival: Cox's partial likelihood, the concordance index, and padding that is at no
risk.
"""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import coterie
from coterie.analysis.scores import concordance
from coterie.core.dp_sgd import PrivateModel
from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.task import TASKS, encode_times, survival
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_arrays, from_frame
from coterie.lab.papers.measures import measure

K = np.arange(60)
TIME, EVENT, RISK = K * 37 % 23 + 1.0, K * 7 % 3 > 0, (K * 11 % 17) / 8  # many ties
SIGNED = encode_times(np.column_stack([TIME, EVENT]))
# scikit-survival 0.28.0: CoxPHOptimizer(RISK[:, None], EVENT, TIME, [0], "breslow") at [1]
LOSS, SLOPE = 2.309675163345525, 0.25357063
# lifelines 0.30.3: concordance_index(TIME, -RISK, EVENT); scikit-survival 0.28.0:
# concordance_index_censored(EVENT, TIME, RISK)
C_INDEX = 0.48635235732009924


def cox(risk, time, event):
    """The mean over rows, as the textbook writes it."""
    sums = [np.log(np.exp(risk[time >= t]).sum()) for t in time]
    return float(np.mean(event * (np.array(sums) - risk)))


def count_by_hand(risk, time, event):
    pairs = right = 0.0
    for i in np.flatnonzero(event):
        for j in range(len(time)):
            if time[i] < time[j] or (time[i] == time[j] and not event[j]):
                pairs += 1
                right += 0.5 * (risk[i] == risk[j]) + (risk[i] > risk[j])
    return right / pairs


def batch_of(x, y, mask):
    place = torch.arange(len(x))
    return Batch(x, y, torch.as_tensor(mask, dtype=x.dtype), place, torch.tensor(0))


def linear(width):
    return Model(lambda: nn.Linear(width, 1), "survival", input_shape=(width,))


def test_the_loss_is_the_partial_likelihood_of_the_textbook_and_of_scikit_survival():
    risk = torch.tensor(RISK[:, None], requires_grad=True)
    loss = survival().losses(risk, torch.tensor(SIGNED)).mean()
    loss.backward()
    assert loss.item() == pytest.approx(cox(RISK, TIME, EVENT), rel=1e-12)
    assert loss.item() == pytest.approx(LOSS, rel=1e-12)
    assert float((risk.grad[:, 0] * torch.tensor(RISK)).sum()) == pytest.approx(SLOPE, rel=1e-6)


def test_the_concordance_index_is_a_count_of_pairs_and_that_of_two_libraries():
    assert concordance(SIGNED, RISK) == pytest.approx(C_INDEX, rel=1e-12)
    rng = np.random.default_rng(0)
    for n in (2, 5, 40):
        time, event = rng.integers(0, 8, n) * 1.0, rng.integers(0, 2, n)
        event[0], time[0], time[1] = 1, 1, 5
        risk = rng.integers(0, 5, n) / 2
        said = concordance(encode_times(np.column_stack([time, event])), risk)
        assert said == pytest.approx(count_by_hand(risk, time, event), rel=1e-12)


def test_values_of_rows_average_to_the_index_and_blocks_change_nothing(monkeypatch):
    y, risk = torch.tensor(SIGNED), torch.tensor(RISK[:, None])
    whole = survival().losses(risk, y)
    assert float(survival().counted(risk, y).mean()) == pytest.approx(C_INDEX)
    monkeypatch.setattr("coterie.core.task.BLOCK", 7)
    torch.testing.assert_close(survival().losses(risk, y), whole)
    assert float(survival().counted(risk, y).mean()) == pytest.approx(C_INDEX)


def test_no_comparable_pair_has_no_index():
    assert np.isnan(concordance(np.array([-1.0, -2.0, 3.0]), np.zeros(3)))
    assert np.isnan(concordance(np.array([1.0, 2.0]), np.array([np.nan, 1.0])))


def test_padding_is_in_no_risk_set():
    rng = np.random.default_rng(1)
    x, model = torch.tensor(rng.normal(size=(8, 3)), dtype=torch.float32), linear(3)
    y, point = torch.tensor(SIGNED[:8], dtype=torch.float32), model.start(0)
    alone = model.grad_and_loss(point, batch_of(x[:5], y[:5], np.ones(5)))
    padded = model.grad_and_loss(point, batch_of(x, y, np.arange(8) < 5))  # rows of others
    torch.testing.assert_close(padded[1], alone[1])
    for name, slope in alone[0].params.items():
        torch.testing.assert_close(padded[0].params[name], slope)
    judged = model.judge(point, batch_of(x, y, np.arange(8) < 5))
    for values, wanted in zip(
        judged, model.judge(point, batch_of(x[:5], y[:5], np.ones(5))), strict=True
    ):
        torch.testing.assert_close(values[:5], wanted)


def test_a_time_of_0_is_at_risk_and_keeps_its_place():
    time, event = np.array([0.0, 0.0, 3.0, 1e-30]), np.array([1, 0, 1, 0])
    y = encode_times(np.column_stack([time, event])).astype(np.float32)
    assert (np.sign(y) == np.where(event, 1, -1)).all()
    assert (np.argsort(np.abs(y), kind="stable") == [0, 1, 3, 2]).all()
    risk = np.array([0.1, 0.5, -1.0, 2.0])
    said = survival().losses(torch.tensor(risk[:, None]), torch.tensor(y).double()).mean()
    assert float(said) == pytest.approx(cox(risk, time, event))


def patients(n=240, clients=3):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 2))
    time, seen = rng.exponential(np.exp(-1.5 * x[:, 0])), rng.exponential(2.0, n)
    return pl.DataFrame(
        {
            "client": [f"site{i % clients}" for i in range(n)],
            "a": x[:, 0],
            "b": x[:, 1],
            "days": np.minimum(time, seen),
            "died": (time <= seen).astype(int),
        }
    )


def test_two_columns_and_one_of_signed_times_are_the_same_label():
    frame = patients()
    two = build_federation(from_frame(frame, label="days,died"), task="survival")
    signed = pl.when(pl.col("died") > 0).then(pl.col("days")).otherwise(-pl.col("days"))
    frame = frame.with_columns(days=signed).drop("died")
    one = build_federation(from_frame(frame, label="days"), task="survival")
    arrays = from_arrays(frame.select("a", "b").to_numpy(), frame["days"], frame["client"])
    third = build_federation(arrays, task="survival")
    assert two.classes == one.classes == third.classes == 0
    for other in (one, third):
        torch.testing.assert_close(two.y, other.y)


@pytest.mark.parametrize("path", ["vectorized", "sequential"])
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_every_client_is_measured_on_all_its_rows_together(tmp_path, path, method):
    frame = patients()
    settings = {"task": "survival", "model": "mlr", "rounds": 4, "batch_size": 8, "path": path}
    data = from_frame(frame, label="days,died")
    run = coterie.run(method, dataset=data, out=tmp_path / "run", threads=1, **settings)
    federation = build_federation(data, task="survival")
    for i, name in enumerate(federation.names):
        rows = federation.rows[federation.test[i]]
        mine = frame[rows.tolist()]
        risk = run.model(name).predict(mine.select("a", "b"))
        wanted = count_by_hand(risk, mine["days"].to_numpy(), mine["died"].to_numpy())
        assert run.client_values()[i] == pytest.approx(wanted)
    assert run.measure == "concordance"
    assert run.client_values().mean() > 0.65
    assert run.trivial["concordance"] == 0.5


@pytest.mark.parametrize(
    ("changes", "label", "line"),
    [
        ({"died": pl.lit(2)}, "days,died", "column 'died' is 2"),
        ({"died": pl.lit(0)}, "days,died", "no event in the training rows"),
        ({"days": pl.lit(-1.0)}, "days,died", "column 'days' is -1 in row 1, which is no time"),
        ({"days": pl.lit("long")}, "days", "holds text, so it is no survival"),
        ({"x": pl.lit(1), "died": pl.lit(1)}, "died,x,a", "several labels are 0 or 1 each"),
    ],
)
def test_what_is_no_survival_is_refused(changes, label, line):
    with pytest.raises(BadInput, match=line):
        build_federation(
            from_frame(patients().with_columns(**changes), label=label), task="survival"
        )


def test_a_time_and_an_event_are_no_labels_beside_each_other():
    with pytest.raises(BadInput, match=r"neither 0 nor 1; .* use --task survival for a time and"):
        build_federation(from_frame(patients(), label="days,died"))


def test_noise_for_single_rows_is_refused_where_rows_are_compared():
    with pytest.raises(BadInput, match="depends on the rows beside it"):
        PrivateModel(linear(2), 1.0, 1.0)


def test_a_whole_batch_leads_to_the_coefficients_of_scikit_survival():
    """CoxPHSurvivalAnalysis(ties="breslow") 0.28.0 on the same 200 rows."""
    rng = np.random.RandomState(0)
    x = rng.normal(size=(200, 3))
    t, c = rng.exponential(np.exp(-x[:, 0] + 0.5 * x[:, 1])), rng.exponential(1.5, 200)
    y = encode_times(np.column_stack([np.minimum(t, c), t <= c]))
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15)

    def loss():
        solver.zero_grad()
        value = survival().losses((torch.tensor(x) @ w)[:, None], torch.tensor(y)).mean()
        value.backward()
        return value

    solver.step(loss)
    theirs = [1.1341606883055162, -0.3916509098174422, -0.11004075446066258]
    assert w.tolist() == pytest.approx(theirs, abs=1e-5)


def test_a_record_is_all_that_the_rest_knows():
    assert TASKS["survival"].measure == "concordance"
    assert not TASKS["survival"].has_units


def test_a_paper_that_reports_a_c_index_is_held_beside_ours(tmp_path):
    data = from_frame(patients(), label="days,died")
    run = coterie.run("fedavg", dataset=data, task="survival", model="mlr", rounds=1, out=tmp_path)
    assert measure(run, "mean", "personal") == pytest.approx(100 * run.client_values().mean())
