"""Notes: a declaration covers what is written under its name, and what does not fit its kind is
refused.
"""

import json

import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.notes import (
    Kind,
    Note,
    check_client_notes,
    check_server_notes,
    declared,
    from_words,
    merge,
    to_words,
)

ALL = {str(kind): Note(f"the {kind}", kind, "unit", "Meaning.", log=True) for kind in Kind}
FITTING = {
    "matrix": torch.ones(3, 3),
    "groups": torch.ones(3),
    "vectors": torch.ones(3, 5),
    "course": torch.ones(3),
    "share": torch.ones(3),
    "final": torch.ones(3),
    "server": torch.tensor(1.0),
    "pair_before": torch.ones(2),
    "pair_after": torch.tensor(1.0),
}


def test_a_pair_and_a_grid_are_declared_under_one_name():
    assert declared("pair_before", ALL) == declared("pair_after", ALL) == ALL["pair"]
    assert declared("grid[lambda=0.5,T=1]", ALL) == ALL["grid"]
    assert declared("course", ALL) == ALL["course"]
    for stray in (
        "pair",
        "grid",
        "view",
        "grid_before",
        "pair[a=1,b=2]",
        "course_before",
        "other",
        "grid[a=1]",
    ):
        assert declared(stray, ALL) is None, stray


def test_a_name_that_ends_like_a_pair_may_be_declared_whole():
    whole = {"steps_after": Note("steps", Kind.COURSE)}
    assert declared("steps_after", whole) == whole["steps_after"]


def test_a_servers_notes_have_the_shape_of_their_kind():
    check_server_notes(FITTING, ALL, 3)
    for name in FITTING:
        with pytest.raises(
            BadInput,
            match=rf"'{name}' has the shape \[4, 4, 4\], which is no '{name.split('_')[0]}' of 3 "
            r"clients",
        ):
            check_server_notes({name: torch.ones(4, 4, 4)}, ALL, 3)
    with pytest.raises(BadInput, match="is no 'grid'"):
        check_server_notes({"grid[a=1,b=2]": torch.ones(3)}, ALL, 3)
    with pytest.raises(BadInput, match="is no 'matrix' of 4 clients"):
        check_server_notes({"matrix": torch.ones(3, 3)}, ALL, 4)


def test_a_client_writes_no_note_of_the_server():
    check_client_notes(["course", "share", "final", "groups", "pair_before", "grid[a=1,b=2]"], ALL)
    for name in ("matrix", "vectors", "server"):
        with pytest.raises(
            BadInput, match=f"'{name}' is declared as '{name}', which servers write"
        ):
            check_client_notes([name], ALL)
    with pytest.raises(
        BadInput, match=r"'r' is written but not declared: .* describes=\{'r': Note"
    ):
        check_client_notes(["r"], ALL)


def test_a_name_has_one_meaning_in_all_stages():
    assert merge([ALL, ALL]) == ALL
    with pytest.raises(BadInput, match="'course' is declared twice"):
        merge([ALL, {"course": Note("another", Kind.COURSE)}])


def test_declarations_survive_json():
    assert from_words(json.loads(json.dumps(to_words(ALL)))) == ALL
    with pytest.raises(BadInput, match="of the kind 'pie', which this version does not know"):
        from_words({"x": {"label": "x", "kind": "pie"}})
