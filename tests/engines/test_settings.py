"""Settings have one form as text, in configurations and in checkpoints."""

import itertools

import pytest

from coterie.engines.settings import SEQUENTIAL, ExecutionSettings, read_settings, text_of


def test_settings_survive_their_text():
    every = [
        ExecutionSettings(*s)
        for s in itertools.product(
            ("auto", "vectorized", "sequential"), (0, 1, 64), ("auto", "yes", "no")
        )
    ]
    assert [ExecutionSettings.read(s.text()) for s in every] == every
    assert read_settings(text_of(every)) == every
    assert (SEQUENTIAL.text(), read_settings("")) == ("sequential:1:no", [])


@pytest.mark.parametrize(
    "text",
    ["", "x:1:no", "sequential:1", "sequential:1:no:no", "sequential:x:no", "sequential:-1:no"],
)
def test_what_is_no_settings_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        ExecutionSettings.read(text)
