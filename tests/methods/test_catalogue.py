"""The table of docs/methods.md says what the code does."""

from helpers.catalogue import table, written


def test_the_table_of_methods_is_what_the_code_does():
    """After a change of what a method sends or keeps: make docs."""
    assert written() == table()
