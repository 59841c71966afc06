"""Laws of drawn tables: the same every time, and federations of the kind they say."""

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.data.read.sources.synthetic_tables import SYNTHETIC_TABLES, write_synthetic_table


@pytest.mark.parametrize("name", SYNTHETIC_TABLES)
def test_a_table_is_the_same_every_time_and_another_with_another_seed(name):
    assert SYNTHETIC_TABLES[name](0).equals(SYNTHETIC_TABLES[name](0))
    assert not SYNTHETIC_TABLES[name](0).equals(SYNTHETIC_TABLES[name](1))


def test_what_gives_a_mine_away_is_shared_by_fields_of_one_ground_only():
    table = SYNTHETIC_TABLES["landmines"](0)
    echoes = [name for name in table.columns if name.startswith("echo")]
    signs = []
    for (_,), field in table.group_by("field", maintain_order=True):
        found, mine = field.select(echoes).to_numpy(), field["mine"].to_numpy() == 1
        signs.append(found[mine].mean(0) - found[~mine].mean(0))
    signs = np.array(signs) / np.linalg.norm(signs, axis=1, keepdims=True)
    cosine, leafy = signs @ signs.T, np.arange(29) < 15
    same, other = cosine[np.ix_(leafy, leafy)].mean(), cosine[np.ix_(leafy, ~leafy)].mean()
    assert same > other + 0.3
    assert 0.05 < table["mine"].mean() < 0.11


def test_schools_differ_in_level_and_most_of_a_score_is_not_told_by_the_school():
    table = SYNTHETIC_TABLES["schools"](0)
    levels = table.select("school", "score").group_by("school").mean()["score"].to_numpy()
    share = levels.var() / table["score"].to_numpy().var()
    assert table["school"].n_unique() == 139
    assert 0.05 < share < 0.5


def test_a_table_is_never_written_over(tmp_path):
    (tmp_path / "schools.csv").write_text("mine\n")
    with pytest.raises(BadInput, match="exists already"):
        write_synthetic_table("schools", tmp_path / "schools.csv")
    assert (tmp_path / "schools.csv").read_text() == "mine\n"
