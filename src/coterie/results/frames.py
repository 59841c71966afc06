"""Tables as pandas frames, for those who have pandas."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from coterie.core.errors import BadInput


def as_pandas(table: pa.Table) -> Any:
    """The table as a pandas DataFrame."""
    if find_spec("pandas") is None:
        raise BadInput(
            "to_pandas needs pandas, which is not installed: pip install pandas, or use polars, "
            "as in polars.from_arrow(run.table)"
        )
    return table.to_pandas()
