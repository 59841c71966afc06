"""How the seed methods got their default options: one procedure for all, on validation rows.

`python benchmarks/defaults.py choose` starts every method at its paper's values and walks through
its steps in GRIDS: each change of a step is run on the federations of CHOOSE, none of which is in a
paper's table, and the options of the highest mean over clients on select rows stay if they gain two
points on those before, which is about the noise of one seed. `python benchmarks/defaults.py check`
runs the paper's values and the defaults beside Local on the federations of CHECK, which chose
nothing, and reads test rows. What was run is kept in docs/results/defaults.json and is not run
again. `python benchmarks/defaults.py` writes the tables of that file into docs/defaults.md.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.methods.listing import list_methods

ROOT = Path(__file__).resolve().parent.parent
STORE, PAGE = ROOT / "docs" / "results" / "defaults.json", ROOT / "docs" / "defaults.md"
MARKS = {"choose": "<!-- chosen -->", "check": "<!-- checked -->", "end": "<!-- end -->"}
ROUNDS = 60
GAIN = 0.02  # of the mean accuracy: less is no reason to leave what was there
Options = dict[str, Any]

PUBLIC = {"public": "held-out", "public_rows": 300}
DIGITS = {"dataset": "digits", "num_clients": 20}
CHOOSE: dict[str, Options] = {
    name: {**DIGITS, "dataset.seed": 1, **PUBLIC, **settings}
    for name, settings in {
        "Dirichlet 0.3": {"partition": "dirichlet", "partition.alpha": 0.3},
        "alike": {"partition": "iid"},
        "two code books": {"partition": "iid", "permute": 2},
    }.items()
}
DEMO = {**DIGITS, "partition": "iid", "permute": 4}  # as in src/coterie/recipes/demo-groups.toml
ALIKE = {**DIGITS, "partition": "iid"}
CHECK: dict[str, Options] = {
    "demo-groups": DEMO,
    "demo-alike": ALIKE,
}
CHECK_PUBLIC: dict[str, Options] = {
    "demo-groups, 300 public rows": DEMO | PUBLIC,
    "demo-alike, 300 public rows": ALIKE | PUBLIC,
}

SOFT = {"temperature": 10.0, "T2_scale": False, "distil_epochs": 1}
PAPER: dict[str, Options] = {
    "ucfl": {"batches": 2.5},
    "persfl": {
        "distil_epochs": 20,
        "lambdas": [0.0, 0.25, 0.5, 0.75, 1.0],
        "temperatures": [1.0, 5.0, 25.0],
    },
    "pfml": {"anchor": "round", "lam": 2.0},
    "selffl": {},  # its defaults are the paper's, and nothing else is tried
    "ktpfl": {**SOFT, "lr_c": 0.01},
    "fedmd": SOFT,
    "sim-pfl": SOFT,
    "topk-pfl": SOFT,
}
# FedMD, Sim-pFL and TopK-pFL distil as KT-pFL does, and take over what it chose
GRIDS: dict[str, list[list[Options]]] = {
    "ucfl": [[{"batches": 0.0, "batch_rows": rows} for rows in (200, 400, 800)]],
    "persfl": [[{"lambdas": [0.0, 0.5, 1.0], "temperatures": [5.0], "distil_epochs": 50}]],
    "pfml": [[{"anchor": "step"}]],
    "ktpfl": [
        [{"temperature": T, "T2_scale": True} for T in (10.0, 3.0)],
        [{"distil_epochs": 5}],
        [{"lr_c": 0.1}],
    ],
}


def read_store() -> dict[str, Any]:
    """What was run so far."""
    known: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    return known


def name_run(place: str, method: str, options: Options) -> str:
    """Under which a run is kept."""
    return f"{place}; {method} {json.dumps(options, sort_keys=True)}"


def play(place: str, settings: Options, method: str, options: Options) -> dict[str, float]:
    """Mean accuracy over clients of one run by part, from the store if it is there."""
    key = name_run(place, method, options)
    if key not in read_store():
        found = run(settings, method, options)
        STORE.write_text(json.dumps(read_store() | {key: found}, indent=0, sort_keys=True) + "\n")
        print(key, found, flush=True)
    kept: dict[str, float] = read_store()[key]
    return kept


def run(settings: Options, method: str, options: Options) -> dict[str, float]:
    """Mean accuracy over clients of one run, by part."""
    brief = {"eval_every": 1000, "models": False, "checkpoint": 0}
    with tempfile.TemporaryDirectory() as folder:
        ended = coterie.run(
            method,
            out=Path(folder) / "run",
            watch=lambda _: None,
            rounds=ROUNDS,
            **brief,
            **settings,
            **options,
        )
        return {p: round(float(np.nanmean(ended.accuracy(p))), 4) for p in ("select", "test")}


def score(method: str, options: Options) -> float:
    """The mean on select rows over the federations that choose."""
    found = [play(name, settings, method, options)["select"] for name, settings in CHOOSE.items()]
    return float(np.mean(found))


def choose(method: str) -> list[Options]:
    """Every options that the procedure tries, its choice last."""
    best, seen = PAPER[method], [PAPER[method]]
    for step in GRIDS[method]:
        tried = [best | change for change in step]
        seen += tried
        found = max(tried, key=lambda options: score(method, options))
        best = found if score(method, found) >= score(method, best) + GAIN else best
    return [*seen, best]


def default_of(method: str) -> Options:
    """Today's values of the options that the procedure looks at."""
    grid = GRIDS.get(method, GRIDS["ktpfl"])
    settings = {option for step in grid for change in step for option in change} | set(
        PAPER[method]
    )
    declared = next(one.options for one in list_methods() if one.name == method)
    return {option: declared[option] for option in sorted(settings & set(declared))}


def list_checks() -> Iterator[tuple[str, Options, str, Options]]:
    """What the page compares: federation, its options, method, the method's options."""
    for federations, public in ((CHECK, False), (CHECK_PUBLIC, True)):
        for place, settings in federations.items():
            yield place, settings, "local", {}
            for method in PAPER:
                if ("temperature" in PAPER[method]) == public:
                    yield place, settings, method, default_of(method)
                    yield place, settings, method, PAPER[method]


def format_options(options: Options, beside: Options) -> str:
    """Options that differ from others', as a command has them."""
    new = {option: value for option, value in options.items() if beside.get(option) != value}
    return ", ".join(f"{option} {json.dumps(value)}" for option, value in new.items())


def write_chosen() -> str:
    """The table of what was tried."""
    lines = [f"| method | options | {' | '.join(CHOOSE)} | mean |", "|---|---|" + "---|" * 4]
    local = [f"{100 * play(n, w, 'local', {})['select']:.1f}" for n, w in CHOOSE.items()]
    lines.append(f"| local | | {' | '.join(local)} | |")
    for method in GRIDS:
        *tried, best = choose(method)
        for options in tried:
            found = [
                f"{100 * play(n, w, method, options)['select']:.1f}" for n, w in CHOOSE.items()
            ]
            said = format_options(options, {} if options is tried[0] else PAPER[method])
            mark = "**" if options == best else ""
            mean = f"{mark}{100 * score(method, options):.1f}{mark}"
            lines.append(f"| {method} | {said} | {' | '.join(found)} | {mean} |")
    return "\n".join(lines)


def write_checked() -> str:
    """The table of paper's values and defaults beside Local."""
    lines = ["| federation | method | local | paper's values | default |", "|---|---|---|---|---|"]
    known = read_store()
    for place in CHECK | CHECK_PUBLIC:
        for method in PAPER:
            keys = [name_run(place, method, o) for o in (PAPER[method], default_of(method))]
            if keys[1] in known:
                there = [name_run(place, "local", {}), *keys]
                found = [f"{100 * known[k]['test']:.1f}" if k in known else "" for k in there]
                lines.append(f"| {place} | {method} | {' | '.join(found)} |")
    return "\n".join(lines)


def write_page() -> None:
    """The tables between their marks."""
    text = PAGE.read_text()
    for name, table in (("choose", write_chosen()), ("check", write_checked())):
        before, _, rest = text.partition(MARKS[name])
        _, _, after = rest.partition(MARKS["end"])
        text = f"{before}{MARKS[name]}\n{table}\n{MARKS['end']}{after}"
    PAGE.write_text(text)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "choose":
        for name in sys.argv[2:] or GRIDS:
            print(name, choose(name)[-1], flush=True)
    elif what == "check":
        for one in list_checks():
            play(*one)
    else:
        write_page()
