"""Methods that were told the groups, or how many there are, are known."""

from types import SimpleNamespace

from coterie.experiment.config import Experiment, change_options
from coterie.results.informed import find_informed


def told(groups: list[int], **methods: dict) -> dict[str, str]:
    runs = {}
    for name, options in methods.items():
        experiment = change_options(Experiment(), {"method": name, **options})
        runs[name] = [SimpleNamespace(experiment=experiment, about={"groups": groups})]
    first = next(iter(runs.values()))[0]
    return find_informed(SimpleNamespace(first=first, runs=runs))


def test_the_oracle_and_ifca_with_the_true_number_are_informed():
    three = [0, 0, 1, 1, 2, 2]
    found = told(three, local={}, oracle={}, ifca={"clusters": 3})
    assert found == {"oracle": "the groups", "ifca": "the number of groups"}
    assert told(three, local={}, ifca={}) == {}  # another number than the true one
    assert told([0, 0, 1, 1], local={}, ifca={}) == {"ifca": "the number of groups"}


def test_without_groups_there_is_nothing_to_be_told():
    assert told([0, 0, 0, 0], oracle={}, ifca={"clusters": 1}) == {}
