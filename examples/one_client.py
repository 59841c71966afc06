"""One client's own model in use: predict rows that no part of the run has seen.

Run it: python examples/one_client.py RUN_FOLDER CLIENT NEW_ROWS.csv ill,well

The last word lists the labels in the order in which `coterie data` draws them: by name.
"""

import sys
from pathlib import Path

import polars as pl
import torch

import coterie
from coterie.data.preparation import prepare_frame
from coterie.results.inputs import read_preparation


def predict(folder: Path, client: str, rows: pl.DataFrame, labels: list[str]) -> pl.DataFrame:
    """The rows with the predicted label and its probability."""
    run = coterie.load(folder)
    inputs = prepare_frame(read_preparation(folder), rows, "new rows", [client] * rows.height)
    with torch.no_grad():
        shares = run.model(client)(torch.from_numpy(inputs)).softmax(1)
    sure, label = shares.max(1)
    return rows.with_columns(
        pl.Series("predicted", [labels[i] for i in label.tolist()]),
        pl.Series("probability", sure.numpy().round(3)),
    )


def main(folder: str, client: str, table: str, labels: str) -> None:
    print(predict(Path(folder), client, pl.read_csv(table), labels.split(",")))


if __name__ == "__main__":
    main(*sys.argv[1:])
