"""The runs of a comparison, put together once for trying them out and for playing them."""

from __future__ import annotations

from typing import NamedTuple

from coterie.core.memory import read_memory_limit
from coterie.data.federation import Federation, cache_digest
from coterie.data.read.file_rows import UserData
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.experiment.toml import to_toml
from coterie.running.assembly import Assembly, assemble, load_federation, read_seed_independent

# Bytes of data and networks that are kept for later.
MAX_BYTES = max(2**30, read_memory_limit() // 8)


class CachedSeed(NamedTuple):
    """The data of one seed, and the runs on them that are put together."""

    federation: Federation
    assemblies: dict[str, Assembly]  # by the options of the experiment

    @property
    def bytes(self) -> int:
        data, public = self.federation, self.federation.public
        tensors = [data.x, data.y, data.table, public.x if public else None]
        rows = sum(t.nbytes for t in tensors if t is not None)
        # A network holds its parameters twice: for training and for evaluation.
        networks = [model for found in self.assemblies.values() for model in found.models]
        return rows + sum(2 * 4 * model.size for model in networks)


class AssemblyCache:
    """Data and assemblies by seed; only as many seeds are kept as fit into ROOM bytes, at least
    one. Seeds share the rows that are read, and the inputs where they are the same.
    """

    def __init__(self, data: Given, networks: Networks):
        self.data, self.networks = data, networks
        self.kept: dict[int, CachedSeed] = {}  # by the seed of the data, the last used at the end
        self.rows: UserData | None = None  # as they were read, if they are kept

    def federation(self, experiment: Experiment) -> Federation:
        """The data of an experiment."""
        return self._of(experiment).federation

    def assembly(self, experiment: Experiment) -> Assembly:
        """The run of an experiment, put together when it is first asked for."""
        kept, settings = self._of(experiment), to_toml(experiment.to_dict())
        if settings not in kept.assemblies:
            made = assemble(experiment, kept.federation, self.networks)
            if kept.bytes > MAX_BYTES:
                kept.assemblies.clear()
            kept.assemblies[settings] = made
            self._make_room()
        return kept.assemblies[settings]

    def _of(self, experiment: Experiment) -> CachedSeed:
        own = experiment.dataset.get("seed")
        seed = experiment.seed if own is None else own
        if seed not in self.kept:
            if self._is_full():
                self.kept.clear()  # before more is read, as a large data set fits no laptop twice
            self.kept[seed] = CachedSeed(self._load_seed(experiment), {})
        self.kept[seed] = self.kept.pop(seed)
        self._make_room()
        return self.kept[seed]

    def _load_seed(self, experiment: Experiment) -> Federation:
        """The data of one more seed."""
        if self.data is not None:
            return load_federation(experiment, self.data)
        if self.rows is None:
            rows, earlier = read_seed_independent(experiment), None
        else:
            rows = self.rows
            earlier = next(reversed(self.kept.values())).federation if self.kept else None
        self.rows = rows if rows is not None and rows.data.x.nbytes <= MAX_BYTES // 2 else None
        return cache_digest(load_federation(experiment, rows, earlier))

    def _is_full(self) -> bool:
        """Whether another seed's data, as large as those that are kept, would not fit."""
        sizes = [kept.bytes for kept in self.kept.values()]
        return self._bytes() + max(sizes, default=0) > MAX_BYTES

    def _make_room(self) -> None:
        while len(self.kept) > 1 and self._bytes() > MAX_BYTES:
            del self.kept[next(iter(self.kept))]

    def _bytes(self) -> int:
        """What is kept in all; inputs that seeds share count once."""
        inputs = {id(kept.federation.x): kept.federation.x.nbytes for kept in self.kept.values()}
        every = [kept.bytes - kept.federation.x.nbytes for kept in self.kept.values()]
        return sum(inputs.values()) + sum(every)
