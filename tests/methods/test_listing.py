"""The list of methods that needs no tensors says what the methods say."""

from coterie.methods.families import FAMILIES
from coterie.methods.listing import FILE, describe_methods, list_methods, text_of
from coterie.methods.registry import METHODS
from helpers.catalogue import arena_records, read_traffic


def test_the_file_is_what_the_registry_says():
    """After a change of methods, options or papers: make docs."""
    assert FILE.read_text(encoding="utf-8") == text_of(
        describe_methods(METHODS, read_traffic(), arena_records())
    )


def test_every_method_is_listed_in_the_registrys_order_with_its_paper_in_one_line():
    found = list_methods()
    assert [one.name for one in found] == list(METHODS)
    assert all(one.paper and "\n" not in one.paper for one in found)


def test_every_method_stands_in_one_family_with_its_year():
    found = list_methods()
    listed = [name for names in FAMILIES.values() for name in names]
    assert sorted(listed) == sorted(METHODS)
    assert {one.name for one in found if one.year is None} == {"local", "oracle"}
    assert min(one.year for one in found if one.year) == 2017  # no number of arXiv
    years = {one.name: one.year for one in found}
    assert (years["fedavgm"], years["fedadam"]) == (2019, 2021)  # not of the paper beside it
    assert all(" / " in one.traffic for one in found)
