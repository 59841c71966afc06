"""The list of methods that needs no tensors says what the methods say."""

from coterie.methods.listing import FILE, describe_methods, list_methods, text_of
from coterie.methods.registry import METHODS


def test_the_file_is_what_the_registry_says():
    """After a change of methods, options or papers: make docs."""
    assert FILE.read_text(encoding="utf-8") == text_of(describe_methods(METHODS))


def test_every_method_is_listed_in_the_registrys_order_with_its_paper_in_one_line():
    found = list_methods()
    assert [one.name for one in found] == list(METHODS)
    assert all(one.paper and "\n" not in one.paper for one in found)
