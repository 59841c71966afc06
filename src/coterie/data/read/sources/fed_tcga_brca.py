"""Survival with breast cancer in six regions (TCGA-BRCA), prepared and split by FLamby."""

import io
from pathlib import Path

import numpy as np
import polars as pl

from coterie.core.errors import BadInput
from coterie.core.task import encode_times
from coterie.data.dataset import Dataset, Source
from coterie.data.read.archives import FilePart
from coterie.data.read.downloads import Origin, collect_files
from coterie.data.read.sources.origins import check_row_count

HOME = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_tcga_brca/"
FILES = {
    "brca.csv": ("brca.csv", "989df4ddec084f749d9593146d7ba92f"),
    "train_test_split.csv": (
        "dataset_creation_scripts/train_test_split.csv",
        "e648057e47463ee7763924d779cd7f2d",
    ),
}
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
INPUTS = 39


def fed_tcga_brca(folder: Path) -> Dataset:
    """1,088 patients of six regions: 39 clinical inputs, days to death or to the last visit."""
    homes = {
        name: Origin(name, (HOME + path,), f"md5:{check}") for name, (path, check) in FILES.items()
    }
    got = collect_files(folder, "fed-tcga-brca", homes)
    patients, split = (read_csv(got[name]) for name in FILES)
    both = patients.join(split, on="pid", how="inner", maintain_order="left")
    check_row_count(got["brca.csv"], both.height, 1_088, whole=True)
    folds = both["fold2"].str.split_exact("_", 1).struct.unnest()
    train = (folds["field_0"] == "train").to_numpy()
    return Dataset(
        name="fed-tcga-brca",
        x=both[:, 1 : 1 + INPUTS].to_numpy().astype(np.float32),
        y=encode_times(both.select("T", "E").to_numpy()).astype(np.float32),
        classes=0,
        train=train,
        users=folds["field_1"].cast(pl.Int64).to_numpy(),
        parts=np.where(train, 0, 2),
        clients=REGIONS,
    )


def read_csv(part: FilePart) -> pl.DataFrame:
    """One of the two tables; both name patients by `pid`."""
    try:
        found = pl.read_csv(io.BytesIO(part.data), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise BadInput(f"{part.place} is no table: {str(error).splitlines()[0]}") from None
    lacking = {"pid"} - set(found.columns)
    lacking |= set() if {"E", "T"} <= set(found.columns) or "fold2" in found.columns else {"fold2"}
    if lacking:
        raise BadInput(f"{part.place}: there is no column {sorted(lacking)[0]}; get the file anew")
    return found


FED_TCGA_BRCA = Source(fed_tcga_brca, natural=True, network="mlr", scale="none", task="survival")
