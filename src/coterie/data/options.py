"""The choices of how a data set becomes a federation, and the refusal of those that cannot work."""

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np

from coterie.core.errors import BadInput, suggest_name
from coterie.core.options import MAX_COUNT, BelowOne, NonNegativeInt, PositiveInt, Range
from coterie.core.task import TaskName
from coterie.data.arrays import iterate_blocks
from coterie.data.dataset import Dataset
from coterie.data.partition.cuts import BY_COLUMN, CUTS
from coterie.data.prepare.public import HELD_OUT
from coterie.data.prepare.scaling import FEATURES, PIXELS, POOLED, SCALES, default_scale_of
from coterie.data.read.catalog import DATASETS
from coterie.data.read.file_rows import UserData

POOLS = ("all", "train")
FREE_CUTS = (None, "published")  # that rows with parts of their own may have


class DataOptions(NamedTuple):
    """How the rows of a data set are chosen, cut, scaled and changed, whatever the partition."""

    validation: BelowOne = 0.2  # share of each client's rows for validation
    # half of the validation rows form the model-selection split, which chooses between methods; no:
    # all are for methods, and nothing is chosen
    select: bool = True
    test: BelowOne = 0.2  # share of each client's rows for testing
    # scaling of features (standard, robust, client) or of images (unit, half, channel, pixel,
    # channel-pool, pixel-pool), or "none"; none given: the default of the data
    scale: str | None = None
    # groups of clients whose images are rotated by 90, 180, 270 and 0 degrees
    rotate: Annotated[int, Range(1, 4)] = 1
    permute: PositiveInt = 1  # groups of clients whose labels are permuted
    # size of a random subset of the pool; none: all rows
    rows: Annotated[int, Range(1, 10**9)] | None = None
    pool: Literal["all", "train"] = "all"  # all rows, or those of the official "train" part
    # number of official test rows, the first ones, that are everyone's test part; 0: own rows
    shared_test: NonNegativeInt = 0
    # how a client's rows are cut into parts: shuffle, order, runs, time or groups; none: the
    # default of the data
    cut: str | None = None
    # channels that a grey image is repeated to
    channels: Annotated[int, Range(1, 64)] | None = None
    # public rows: another image data set, or "held-out" for rows out of the pool
    public: str | None = None
    public_rows: PositiveInt | None = None  # number of public rows; none: all there are
    # scaling of another data set's public images; none: that of the private ones
    public_scale: str | None = None
    labelled: bool = False  # the public rows keep their labels
    # images are kept as they are after one random crop (padding 4) and flip, as files written
    # after a library's augmentation are
    augmented_once: bool = False
    # methods that choose nothing on validation rows train on them too, once options are chosen
    refit: bool = False
    # what the label is learnt as; none: guessed from the training rows
    task: TaskName | None = None
    # a loss function of one's own instead of the task's, as module:function
    loss: str = ""
    # weights of classes in the loss: "balanced" lets rare classes of the training rows count more
    class_weights: Literal["none", "balanced"] = "none"
    # clients held out of training, who come after it: below 1 a share of all, else a count
    newcomers: Annotated[float, Range(0, MAX_COUNT)] = 0.0


def check_data_options(whole: UserData, choices: DataOptions) -> None:
    """Refuse what cannot work before any row is partitioned."""
    base, table = whole.data, whole.columns is not None
    for option, value, valid in (
        ("scale", choices.scale or SCALES[0], SCALES),
        ("public_scale", choices.public_scale or "none", (*PIXELS, *POOLED, "none")),
        ("pool", choices.pool, POOLS),
        ("cut", choices.cut or CUTS[0], CUTS),
    ):
        if value not in valid:
            raise BadInput(f"{option} = '{value}' is not known" + suggest_name(value, valid))
    _check_shares(choices)
    if whole.is_text and choices.scale is not None:
        raise BadInput(
            f"scale = '{choices.scale}' is for numbers, but '{base.name}' has texts; leave it out"
        )
    _check_scale(base, choices.scale or default_scale_of(base, table), choices.shared_test)
    if whole.cut is not None and choices.cut not in BY_COLUMN:
        raise BadInput("a column to cut by has no effect without cut = time or cut = groups")
    if base.parts is not None and base.name not in DATASETS and choices.cut not in FREE_CUTS:
        raise BadInput(
            f"cut = '{choices.cut}' has no effect, as rows of '{base.name}' have parts already: "
            "leave out --cut, or the parts"
        )
    _check_changes(base, choices)
    _check_pool(base, choices)
    if choices.augmented_once and (base.x.dtype != np.uint8 or base.x.ndim != 4):
        raise BadInput(
            f"augmented_once crops and flips images, but '{base.name}' has rows of shape "
            f"{list(base.x.shape[1:])}: leave it out"
        )
    if choices.public_scale and choices.public in (None, HELD_OUT):
        raise BadInput(
            f"public_scale = '{choices.public_scale}' has no effect without public images of "
            "another data set: give --public"
        )
    if choices.refit and not choices.validation:
        raise BadInput(
            "refit trains on validation rows too, and validation = 0 leaves none: "
            "raise --validation"
        )


def _check_shares(choices: DataOptions) -> None:
    validation, test, shared = choices.validation, choices.test, choices.shared_test
    if not 0 <= validation < 1 or not (0 < test < 1 or shared):
        raise BadInput(
            f"validation = {validation:g}, test = {test:g}: give shares of a client's rows, test "
            "above 0 and both below 1"
        )
    if validation + (0 if shared else test) > 1 - 1e-9:
        raise BadInput(
            f"validation = {validation} and test = {test} leave no train part; "
            "give less than 1 together"
        )


def _check_scale(base: Dataset, kind: str, shared_test: int) -> None:
    shape, images = list(base.x.shape[1:]), base.x.dtype == np.uint8
    if kind in PIXELS and not images:
        raise BadInput(
            f"scale = '{kind}' is for images, but '{base.name}' has rows of shape {shape}; "
            f"use {', '.join(FEATURES)} or none"
        )
    if kind in FEATURES and base.x.dtype.kind != "f":
        raise BadInput(
            f"scale = '{kind}' is for features, but '{base.name}' has {base.x.dtype} rows of "
            f"shape {shape}; use {', '.join(PIXELS) if images else 'none'}"
        )
    of_channels = kind in ("channel", "channel-pool") and len(shape) != 3
    if of_channels or (kind == "pixel-pool" and base.x.dtype == np.int64):
        raise BadInput(
            f"scale = '{kind}' does not fit rows of shape {shape} of '{base.name}'; use none"
        )
    if kind == "client" and shared_test:
        raise BadInput(
            "scale = 'client' has no scale for test rows that all clients share; "
            "use standard, or shared_test = 0"
        )


def _check_changes(base: Dataset, choices: DataOptions) -> None:
    shape, rotate, permute = list(base.x.shape[1:]), choices.rotate, choices.permute
    if rotate not in (1, 2, 4):
        raise BadInput(
            f"rotate = {rotate}: give 1 (none), 2 (180 and 0 degrees) or 4 (90, 180, 270 and 0)"
        )
    if rotate > 1 and (len(shape) != 3 or (rotate == 4 and shape[1] != shape[2])):
        raise BadInput(
            f"rotate = {rotate} needs square images, but '{base.name}' has rows of shape {shape}"
        )
    orders = math.factorial(min(base.classes, 12))
    if not 1 <= permute <= orders or (permute > 1 and base.classes == 0):
        raise BadInput(
            f"permute = {permute}: '{base.name}' has {base.classes} classes, "
            f"so give 1 to {orders:,}"
        )


def _check_pool(base: Dataset, choices: DataOptions) -> None:
    shape, channels = list(base.x.shape[1:]), choices.channels
    official = int((~base.train).sum())
    if choices.shared_test < 0 or choices.shared_test > official:
        raise BadInput(
            f"shared_test = {choices.shared_test:,}, but '{base.name}' has {official:,} "
            "official test rows; lower it or give a share with test"
        )
    if choices.public == base.name:
        raise BadInput(
            f"public = '{base.name}' is the private data set itself; "
            "use public = 'held-out' with public_rows"
        )
    if choices.pool == "train" and not base.train.any():
        raise BadInput(
            f"pool = 'train', but '{base.name}' has no training rows here; use pool = 'all'"
        )
    if channels is not None and (len(shape) != 3 or shape[0] not in (1, channels) or channels < 1):
        raise BadInput(
            f"channels = {channels} repeats a grey image, "
            f"but '{base.name}' has rows of shape {shape}"
        )


def check_values(base: Dataset, table: bool = False) -> None:
    """Refuse data without rows, inputs that are no numbers, and labels that are no classes.

    The cells of a table may be missing.
    """
    if len(base.y) == 0:
        raise BadInput(f"'{base.name}' has no rows")
    if base.x.dtype.kind == "f" and not table:
        for at in iterate_blocks(len(base.x)):
            good = np.isfinite(base.x[at].reshape(at.stop - at.start, -1)).all(1)
            if not good.all():
                row = at.start + int(np.flatnonzero(~good)[0])
                raise BadInput(
                    f"'{base.name}' has NaN or infinity in row {row:,} (counted from 0); "
                    "fill or remove it"
                )
    if base.classes and (base.y.min() < 0 or base.y.max() >= base.classes):
        raise BadInput(
            f"'{base.name}' has labels {base.y.min()} to {base.y.max()}, "
            f"but {base.classes} classes: labels must be 0 to {base.classes - 1}"
        )
