"""Matrices small enough to look at, and exact peers."""

import numpy as np
import pytest

from coterie.reports.matrices import (
    MAX_GROUPS,
    MAX_PEERS,
    build_mixing_heat,
    find_peers,
    mean_between,
)


def test_between_groups_is_the_mean_over_pairs():
    rng = np.random.default_rng(0)
    matrix, group = rng.normal(size=(7, 7)), np.array([0, 1, 1, 0, 2, 1, 0])
    found = mean_between(matrix, group)
    for a in range(3):
        for b in range(3):
            pairs = [
                matrix[i, j]
                for i in range(7)
                for j in range(7)
                if i != j and group[i] == a and group[j] == b
            ]
            assert found[a, b] == pytest.approx(np.mean(pairs)) if pairs else np.isnan(found[a, b])


def test_peers_are_the_largest_weights_on_others():
    matrix = np.random.default_rng(1).normal(size=(30, 30))
    for i, found in enumerate(find_peers(matrix)):
        others = sorted(
            ((matrix[i, j], j) for j in range(30) if j != i and matrix[i, j] > 0), reverse=True
        )[:MAX_PEERS]
        assert [(j, w) for w, j in others] == found


def test_a_large_matrix_is_shown_in_groups():
    n = 150
    blocks = np.repeat(np.arange(3), 50)
    matrix = (blocks[:, None] == blocks[None]) / 50
    drawn, how = build_mixing_heat(
        [(1, matrix)], [str(i) for i in range(n)], np.zeros(n, dtype=int)
    )
    assert len(drawn.rows) == MAX_GROUPS
    assert "alike rows" in how
    drawn, how = build_mixing_heat([(1, matrix)], [str(i) for i in range(n)], blocks)
    assert drawn.rows[0] == "true group 1 (50 clients)"
    assert np.allclose(drawn.frames[0][1], np.eye(3) / 50)
