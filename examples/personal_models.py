"""From a run to a model in use: predict new rows, write a card, hand a model to others.

Run it: python examples/personal_models.py
"""

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import coterie
from coterie.serving.cards import render_markdown
from coterie.serving.model_files import export_model, load_model_files, write_safetensors


def visits(sites: int = 4, rows: int = 60, seed: int = 0) -> pl.DataFrame:
    """A small table of visits to clinics; every clinic has its own rule, and gaps."""
    rng = np.random.default_rng(seed)
    age, job = rng.normal(50, 15, sites * rows), rng.choice(["desk", "field"], sites * rows)
    clinic = np.repeat(np.arange(sites), rows)
    late = age + 20 * (job == "field") * (clinic % 2) > 55
    return pl.DataFrame(
        {
            "clinic": [f"clinic-{k}" for k in clinic],
            "age": [None if rng.random() < 0.1 else round(a, 1) for a in age],
            "job": job,
            "verdict": np.where(late, "see again", "well"),
        }
    )


def main(folder: Path | None = None, rounds: int = 20) -> None:
    folder = folder or Path(tempfile.mkdtemp())
    run = coterie.run(
        "ditto",
        dataset=visits(),
        client="clinic",
        label="verdict",
        rounds=rounds,
        batch_size=8,
        out=folder / "run",
        watch=lambda report: None,
    )
    new = visits(seed=1).drop("verdict")  # raw rows: texts, gaps and all
    model = coterie.load(run.folder, "clinic-1")
    print(model.classes_, model.predict_proba(new.filter(clinic="clinic-1")[:2]).round(2))
    answers = run.predict(new, clients="clinic")  # each row by its own clinic's model
    print(f"{(answers == 'see again').mean():.0%} of {len(answers)} are to be seen again")
    print(render_markdown(model.card).splitlines()[0])
    export_model(model, folder / "handed-on", write_safetensors)
    again = load_model_files(folder / "handed-on")
    print("the same elsewhere:", np.array_equal(again.predict(new), model.predict(new)))


if __name__ == "__main__":
    main()
