"""Which NumPy dtype the values of an Arrow type have."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["numpy_dtype"]

_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def numpy_dtype(arrow_type: Any) -> np.dtype[Any] | None:
    """Return the dtype of numbers and times; None for texts, lists, times of a time zone and the like.

    Notes:
        ``DataType.to_pandas_dtype`` asks for pandas in most releases of pyarrow.
    """
    from pyarrow import types

    if types.is_timestamp(arrow_type):
        return np.dtype(f"datetime64[{arrow_type.unit}]") if arrow_type.tz is None else None
    if types.is_duration(arrow_type):
        return np.dtype(f"timedelta64[{arrow_type.unit}]")
    if types.is_date(arrow_type):
        return np.dtype("datetime64[ms]")
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_boolean(arrow_type):
        return np.dtype(_NAMES.get(str(arrow_type), str(arrow_type)))
    return None
