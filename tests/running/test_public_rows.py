"""Laws of public rows: the words that a refusal offers work, for these data and this method."""

import re

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.running.assembly import assemble, load_federation

NEEDING = ("pfeddf", "feddf", "ktpfl", "fedmd")


def _table(folder, rows, clients=5):
    """A table of one's own: two features and a label."""
    rng = np.random.default_rng(0)
    lines = ["clinic,a,b,ill"]
    for k, (a, b) in enumerate(rng.normal(size=(rows, 2))):
        lines.append(f"c{k % clients},{a:.3f},{b:.3f},{'yes' if a + b > 0 else 'no'}")
    (folder / "table.csv").write_text("\n".join(lines))
    return {"dataset": str(folder / "table.csv"), "client": "clinic", "label": "ill"}


def _refusal(settings):
    with pytest.raises(BadInput) as caught:
        _assembled(settings)
    return str(caught.value)


def _assembled(settings):
    experiment = change_options(Experiment(), settings)
    return assemble(experiment, load_federation(experiment))


def _offered(refusal):
    return dict(re.findall(r"--([\w.-]+) ([\w-]+)", refusal.split(", or ")[0].split(" or ")[0]))


@pytest.mark.parametrize("method", NEEDING)
@pytest.mark.parametrize("rows", [40, 200, 2400])
def test_the_words_that_are_offered_to_a_table_work(tmp_path, method, rows):
    settings = {"method": method, **_table(tmp_path, rows)}
    refusal = _refusal(settings)
    assert f"{method} needs a public data set: give --public held-out" in refusal
    assert "mnist" not in refusal  # images do not stand beside a table
    offered = _offered(refusal)
    assert (f"{method}.draw" in offered) == (rows < 2400)
    assert _assembled(settings | offered).federation.public is not None


@pytest.mark.parametrize("method", NEEDING)
def test_a_draw_that_is_too_large_is_named_with_one_that_fits(tmp_path, method):
    settings = {"method": method, **_table(tmp_path, 200), "public": "held-out", "public-rows": 30}
    refusal = _refusal(settings)
    assert refusal == (
        f"{method} draws 300 public rows per round, 'held-out' has 30: give --{method}.draw 30"
    )
    _assembled(settings | _offered(refusal))


def test_more_public_rows_are_offered_where_there_are_more(tmp_path):
    settings = {
        "method": "feddf",
        **_table(tmp_path, 2400),
        "public": "held-out",
        "public-rows": 30,
    }
    assert _refusal(settings).endswith("give --feddf.draw 30 or --public-rows 300")
    _assembled(settings | {"public-rows": 300})


def test_images_are_offered_other_images_and_never_themselves():
    experiment = change_options(Experiment(), {"method": "feddf", "dataset": "digits"})
    federation = load_federation(experiment)
    with pytest.raises(
        BadInput, match=r"--public-rows 300, or --public mnist, emnist or cifar100$"
    ):
        assemble(experiment, federation)
    for name in ("mnist", "mnist-writers"):
        with pytest.raises(BadInput, match=r"300, or --public emnist or cifar100$"):
            assemble(experiment, federation._replace(name=name))
