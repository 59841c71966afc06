"""Notes: a declaration covers what is written under its name, and what does not fit its kind is
refused.
"""

import json

import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.quantities import (
    LoggedQuantity,
    QuantityKind,
    check_client_logged,
    check_server_logged,
    find_declaration,
    from_json,
    merge_declarations,
    to_json,
)

ALL = {
    str(kind): LoggedQuantity(f"the {kind}", kind, "unit", "Meaning.", log=True)
    for kind in QuantityKind
}
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
    assert (
        find_declaration("pair_before", ALL) == find_declaration("pair_after", ALL) == ALL["pair"]
    )
    assert find_declaration("grid[lambda=0.5,T=1]", ALL) == ALL["grid"]
    assert find_declaration("course", ALL) == ALL["course"]
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
        assert find_declaration(stray, ALL) is None, stray


def test_a_name_that_ends_like_a_pair_may_be_declared_whole():
    whole = {"steps_after": LoggedQuantity("steps", QuantityKind.COURSE)}
    assert find_declaration("steps_after", whole) == whole["steps_after"]


def test_a_servers_notes_have_the_shape_of_their_kind():
    check_server_logged(FITTING, ALL, 3)
    for name in FITTING:
        with pytest.raises(
            BadInput,
            match=rf"'{name}' has the shape \[4, 4, 4\], which is no '{name.split('_')[0]}' of 3 "
            r"clients",
        ):
            check_server_logged({name: torch.ones(4, 4, 4)}, ALL, 3)
    with pytest.raises(BadInput, match="is no 'grid'"):
        check_server_logged({"grid[a=1,b=2]": torch.ones(3)}, ALL, 3)
    with pytest.raises(BadInput, match="is no 'matrix' of 4 clients"):
        check_server_logged({"matrix": torch.ones(3, 3)}, ALL, 4)


def test_a_client_writes_no_note_of_the_server():
    check_client_logged(["course", "share", "final", "groups", "pair_before", "grid[a=1,b=2]"], ALL)
    for name in ("matrix", "vectors", "server"):
        with pytest.raises(
            BadInput, match=f"'{name}' is declared as '{name}', which servers write"
        ):
            check_client_logged([name], ALL)
    with pytest.raises(BadInput, match=r"'r' is not declared: .* describes=\{'r': LoggedQuantity"):
        check_client_logged(["r"], ALL)


def test_a_name_has_one_meaning_in_all_stages():
    assert merge_declarations([ALL, ALL]) == ALL
    with pytest.raises(BadInput, match="'course' is declared twice"):
        merge_declarations([ALL, {"course": LoggedQuantity("another", QuantityKind.COURSE)}])


def test_declarations_survive_json():
    assert from_json(json.loads(json.dumps(to_json(ALL)))) == ALL
    with pytest.raises(BadInput, match="of the kind 'pie', which this version does not know"):
        from_json({"x": {"label": "x", "kind": "pie"}})
