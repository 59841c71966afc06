"""Try hostile input of every kind: `python scripts/fuzz.py [CASES] [SEED]` (10,000 cases).

Prints how many cases were tried and what failed; exits with 1 if anything did.
"""

import collections
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import fuzz

SHOWN = 40  # failures that are printed


def main(cases: int, number: int) -> int:
    torch.set_num_threads(1)
    outcomes: collections.Counter[str] = collections.Counter()
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = fuzz.make_runs(Path(folder))
        for kind, share, strategy, attempt in kinds(made):
            begin = time.perf_counter()
            for outcome, said in tried(strategy, attempt, max(1, round(cases * share)), number):
                outcomes[f"{kind}: {outcome}"] += 1
                if said:
                    failures.setdefault(said, kind)
            print(f"{kind}: {time.perf_counter() - begin:.0f} s", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7,} {outcome}")
    for said, kind in list(failures.items())[:SHOWN]:
        print(f"FAILED {kind}: {said[:600]}")
    print(f"{outcomes.total():,} cases, {len(failures)} different failures")
    return 1 if failures else 0


def kinds(made: Path) -> list[tuple[str, float, Any, Callable[..., str]]]:
    """(name, share of the cases, strategy, what is tried with it)."""
    folders = st.tuples(st.integers(0, 999), fuzz.damages, fuzz.values, st.floats(0, 0.99))
    files = st.tuples(fuzz.toml_texts(), st.sampled_from(["run", "compare"]))
    return [
        ("command lines", 0.3, fuzz.command_lines(), fuzz.try_command),
        ("files", 0.2, files, lambda case: fuzz.try_toml(*case)),
        ("tables", 0.15, fuzz.tables(), lambda case: fuzz.try_table(*case, {})),
        ("folders", 0.1, folders, lambda case: fuzz.try_folder(made, *case)),
        ("Python", 0.2, fuzz.python_calls, lambda case: fuzz.try_python(*case)),
        ("arrays", 0.05, fuzz.arrays, lambda case: fuzz.try_arrays(*case)),
    ]


def tried(
    strategy: Any, attempt: Callable[[Any], str], cases: int, number: int
) -> list[tuple[str, str]]:
    """(outcome, what failed or "") of every case."""
    found: list[tuple[str, str]] = []

    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(case: Any) -> None:
        try:
            found.append((attempt(case), ""))
        except fuzz.Failed as failure:
            found.append(("failed", str(failure)))

    one()
    return found


if __name__ == "__main__":
    given_settings = [int(option) for option in sys.argv[1:]]
    sys.exit(main(*(given_settings + [10_000, 0][len(given_settings) :])))
