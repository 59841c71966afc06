"""Laws of what a label is learnt as: guessed and fitted on training rows, and on nothing else."""

import json

import numpy as np
import polars as pl
import pytest
from sklearn.utils.class_weight import compute_class_weight

from coterie.core.errors import BadInput
from coterie.data.messages import DataWarning
from coterie.data.pipeline import build_federation
from coterie.data.prepare.preparation import preparation_from_dict
from coterie.data.read.user_data import from_arrays, from_frame, read_plain_file, read_user_data
from coterie.data.read.user_table import ColumnRoles

ROWS = 160


def frame(**labels):
    rng = np.random.default_rng(0)
    columns = {"client": [f"c{i % 4}" for i in range(ROWS)], "a": rng.normal(size=ROWS)}
    return pl.DataFrame(columns | labels)


def made(values, **choices):
    return build_federation(from_frame(frame(label=values)), **choices)


WHOLE = np.random.default_rng(1).permutation(np.arange(ROWS) % 70)
FEW = np.arange(ROWS) % 5
FRACTION = np.random.default_rng(2).normal(60, 12, ROWS)
TEXT = np.array(["well", "sick", "dead"])[np.arange(ROWS) % 3]


def test_a_label_with_a_far_outlier_is_offered_the_task_that_outliers_move_little():
    far = np.where(np.arange(ROWS) % 9 == 0, 1e9, FRACTION)
    with pytest.warns(DataWarning, match=r"its farthest lies [\d,]+ interq.*: --task huber"):
        made(far)
    with pytest.warns(DataWarning) as said:
        made(FRACTION)
    assert not any("huber" in str(line.message) for line in said)


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        (
            WHOLE,
            "regression",
            "in training rows: read as regression; --task classes",
        ),
        (FRACTION, "regression", "numbers with a fraction in training rows: read as regression"),
    ],
)
def test_many_numbers_are_read_as_regression_and_it_is_said(values, task, said):
    with pytest.warns(DataWarning, match=said):
        federation = made(values)
    assert federation.target.task == task
    assert federation.classes == 0


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        (
            FEW,
            "classes",
            "in training rows: read as classes; --task regression",
        ),
        (FEW.astype(float), "classes", "5 whole-number values in training rows"),
        (TEXT, "classes", "3 different texts: read as classes"),
        (FEW > 2, "binary", "read as binary"),
    ],
)
def test_few_values_and_texts_are_read_as_classes_and_it_is_said(values, task, said, caplog):
    with caplog.at_level("INFO", logger="coterie.data"):
        assert made(values).target.task == task
    assert said in caplog.text


def test_whole_numbers_of_arrays_are_classes_and_fractions_are_not():
    x, owners = np.random.default_rng(0).normal(size=(ROWS, 2)), np.arange(ROWS) % 4
    assert build_federation(from_arrays(x, WHOLE, owners)).classes == 70
    with pytest.warns(DataWarning, match="fraction"):
        assert build_federation(from_arrays(x, FRACTION, owners)).target.task == "regression"


def test_targets_of_a_regression_are_standardised_by_training_rows_alone():
    federation = made(FRACTION, task="regression")
    train = np.concatenate(federation.train)
    numbers = FRACTION[federation.rows[train]]
    target = federation.target
    assert (target.centre, target.spread) == pytest.approx((numbers.mean(), numbers.std()))
    y = federation.y.numpy()
    assert y[train].mean() == pytest.approx(0, abs=1e-6)
    assert y[train].std() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(y * target.spread + target.centre, FRACTION[federation.rows], 1e-5)


@pytest.mark.parametrize(
    ("values", "nonsense", "choices"),
    [
        (FRACTION, 1e6, {"task": "regression"}),
        (FRACTION, 1e6, {}),
        (WHOLE.astype(float), 1234567.0, {}),
        (FEW, 4, {}),
        (FEW, 0, {"class_weights": "balanced"}),
        (FEW, 3, {"task": "counts"}),
        (FEW, 0, {"task": "ordinal", "class_weights": "balanced"}),
    ],
)
@pytest.mark.filterwarnings("ignore::coterie.data.messages.DataWarning")
def test_garbage_in_held_out_labels_changes_nothing_that_trains(values, nonsense, choices):
    clean = made(values, **choices)
    held = np.concatenate([*clean.validation, *clean.test])
    spoilt = values.copy()
    spoilt[clean.rows[held]] = nonsense
    got = made(spoilt, **choices)
    assert json.dumps(got.preparation.to_dict()) == json.dumps(clean.preparation.to_dict())
    for one, two in zip(clean.train, got.train, strict=True):
        assert np.array_equal(clean.y[one], got.y[two])
        assert np.array_equal(clean.x[one], got.x[two])
    assert not np.array_equal(clean.y[held], got.y[held])


@pytest.mark.filterwarnings("ignore::coterie.data.messages.DataWarning")
def test_the_task_is_chosen_by_training_rows_alone():
    few = made(FEW)
    held = np.concatenate([*few.validation, *few.test])
    spoilt = FEW.copy()
    spoilt[few.rows[held]] = 100 + np.arange(len(held))  # many values, but in held-out rows
    assert made(spoilt).target.task == few.target.task == "classes"
    seen = FEW.copy()
    rows = few.rows[np.concatenate(few.train)]
    seen[rows] = 100 + np.arange(len(rows))
    assert made(seen).target.task == "regression"


def test_balanced_weights_are_those_of_scikit_learn_for_the_training_rows():
    values = (np.arange(ROWS) % 10 == 0).astype(int)
    federation = made(values, class_weights="balanced")
    y = federation.y.numpy()[np.concatenate(federation.train)]
    wanted = compute_class_weight("balanced", classes=np.array([0, 1]), y=y)
    np.testing.assert_allclose(federation.target.weights[0], wanted)


def test_what_was_fitted_survives_its_file():
    for values, choices in (
        (FRACTION, {"task": "regression"}),
        (FEW, {"class_weights": "balanced"}),
    ):
        kept = made(values, **choices).preparation
        assert preparation_from_dict(json.loads(json.dumps(kept.to_dict()))) == kept


def test_several_label_columns_are_several_labels():
    one, two = (np.arange(ROWS) % 2, np.arange(ROWS) % 3 == 0)
    federation = build_federation(from_frame(frame(one=one, two=two), label="one,two"))
    assert federation.target.task == "multilabel"
    assert federation.target.columns == ("one", "two")
    assert federation.x.shape[1] == 1  # no label is a feature
    rows = federation.rows
    assert np.array_equal(federation.y.numpy(), np.stack([one, two], 1)[rows])


@pytest.mark.parametrize(
    ("values", "choices", "line"),
    [
        (np.where(np.arange(ROWS) == 7, np.nan, FRACTION), {}, "row 8"),
        (np.where(np.arange(ROWS) == 7, np.inf, FRACTION), {}, "'label' is inf in row 8"),
        (np.full(ROWS, 3.5), {"task": "regression"}, "3.5 in every training row"),
        (np.full(ROWS, 1), {}, "one class only"),
        (np.where(np.arange(ROWS) == 7, -1, FEW), {"task": "counts"}, "-1 in row 8.*no count"),
        (FRACTION, {"task": "counts"}, "no count"),
        (FRACTION, {"task": "classes"}, "a class is whole or text"),
        (TEXT, {"task": "regression"}, "holds text, so it is no regression"),
        (TEXT, {"task": "ordinal"}, "whose order is not known"),
        (FEW, {"task": "binary"}, "5 different values"),
        (FEW > 2, {"task": "ordinal"}, "use --task binary"),
        (FEW, {"task": "multilabel"}, "name several with --label"),
        (FEW, {"task": "regress"}, "task = 'regress'"),
        (FRACTION, {"task": "regression", "class_weights": "balanced"}, "has no classes"),
        (WHOLE, {"partition": "dirichlet", "num_clients": 4}, "use --partition iid"),
    ],
)
@pytest.mark.filterwarnings("ignore::coterie.data.messages.DataWarning")
def test_what_cannot_be_learnt_is_refused_in_one_line(values, choices, line):
    with pytest.raises(BadInput, match=line) as caught:
        made(values, **choices)
    assert "\n" not in str(caught.value)


def test_labels_beside_each_other_are_0_or_1_and_not_constant():
    good, odd = np.arange(ROWS) % 2, np.arange(ROWS) % 3
    with pytest.raises(BadInput, match="column 'odd' is 2"):
        from_frame(frame(good=good, odd=odd), label=["good", "odd"])
    with pytest.raises(BadInput, match="'same' is 0 in every training row"):
        build_federation(from_frame(frame(good=good, same=0 * good), label="good,same"))


def test_one_file_is_read_with_labels_as_they_are_written(tmp_path):
    (tmp_path / "site.csv").write_text("a,label\n1,0.5\n2,1\n")
    piece = read_plain_file(
        tmp_path / "site.csv", ColumnRoles(client="", label="label", features=[])
    )
    assert piece.y.tolist() == [0.5, 1.0]
    assert piece.x.dtype == np.float64


def test_a_known_data_set_has_its_own_task():
    with pytest.raises(BadInput, match="'digits' has 10 classes"):
        build_federation("digits", task="regression")


def test_a_label_with_decimal_commas_is_a_number(tmp_path):
    lines = [f"{c};{i};{i},{i % 7}" for c in "ab" for i in range(30)]
    (tmp_path / "own.csv").write_text("client;x;score\n" + "\n".join(lines))
    found = read_user_data(tmp_path / "own.csv", label="score")
    assert found.label.numbers[:3].tolist() == [0.0, 1.1, 2.2]
