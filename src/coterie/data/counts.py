"""How many rows of each class every client holds in each part: the split of a federation as a table."""

import numpy as np
import pyarrow as pa

from coterie.data.federation import Federation

COLUMNS = pa.schema([("client", pa.int32()), ("part", pa.string()), ("label", pa.int32()), ("rows", pa.int64())])


def label_counts(federation: Federation) -> pa.Table:
    """A row for each class that a client holds in a part, in the order of parts and clients; none where there are no classes."""
    blocks = [COLUMNS.empty_table()]
    y = federation.y.numpy()
    for part in ("train", "validation", "test") if federation.classes else ():
        lists = getattr(federation, part)
        owner = np.repeat(np.arange(len(lists)), [len(rows) for rows in lists])
        cells = owner * federation.classes + y[np.concatenate(lists)]
        held, counts = np.unique(cells, return_counts=True)
        client, label = np.divmod(held, federation.classes)
        blocks.append(pa.table([client, [part] * len(held), label, counts], names=COLUMNS.names).cast(COLUMNS))
    return pa.concat_tables(blocks)
