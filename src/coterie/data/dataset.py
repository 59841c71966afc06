"""A data set: its rows, and the entry that says how it is read and what is special about it."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.data.lazy_rows import RowGenerator

# what a row may be published as, in this order in Dataset.parts
PUBLISHED_PARTS = ("train", "validation", "test")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Dataset(NamedTuple):
    """All rows of a data set, of all clients."""

    name: str
    x: np.ndarray  # [n, ...]: uint8 images [n, c, h, w], float32 features, int64 rows of `table`
    y: np.ndarray  # [n] int64 class labels; float32 targets when classes == 0
    classes: int  # 0 where the targets are numbers
    train: np.ndarray  # [n] bool, the official training part; all True where there is none
    users: np.ndarray | None  # [n] int, the natural client of each row, else None
    truth: np.ndarray | None = None  # [clients, 1], the means that observations were drawn around
    table: np.ndarray | None = None  # [words + 1, dimension] float32 word vectors, row 0 zeros
    # [n] places in PUBLISHED_PARTS where every row has a published part, else None
    parts: np.ndarray | None = None
    clients: tuple[str, ...] = ()  # what natural clients are called; (): by their number


class Channels(NamedTuple):
    """Published mean and deviation per channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Source(NamedTuple):
    """One registered data set: how it is read, and what is special about it."""

    load: Callable[..., Dataset]  # (folder, **options); its signature holds the options
    natural: bool = False  # its rows belong to clients already
    network: str = "dnn"  # the default network
    network_options: Mapping[str, Any] = NOTHING  # where they differ from the network's defaults
    cut: str = "shuffle"  # how the rows of a natural client are usually cut in parts
    scale: str = ""  # the default scaling; "" leaves it to the kind of rows
    top: float = 255.0  # the largest pixel value
    channels: Channels | None = None  # None: those of the rows at hand
    # takes the options of `load`: rows that are made when they are asked for, None: load them all
    lazily: Callable[..., RowGenerator | None] | None = None
    task: str = ""  # what is learnt where there are no classes; "": vectors
    split_options: Mapping[str, Mapping[str, Any]] = NOTHING  # of splits, as papers have them here

    @property
    def drawn(self) -> bool:
        """Whether the rows are drawn from a seed rather than read."""
        return "seed" in inspect.signature(self.load).parameters


def refuse_loading(folder: object) -> Dataset:
    """The loader of data that have no name in the registry."""
    raise NotImplementedError("data at hand are not loaded")


UNREGISTERED = Source(refuse_loading)  # nothing is special about data at hand
UNREGISTERED_TEXTS = Source(
    refuse_loading, network="bag"
)  # data of one's own that are read word by word


class Public(NamedTuple):
    """Data that server and clients both know, for methods that transfer knowledge."""

    name: str
    x: torch.Tensor  # [n, ...] of the private input shape
    y: torch.Tensor | None  # [n] int64, only where labels were asked for
    checksum: str
