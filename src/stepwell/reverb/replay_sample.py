"""What is drawn from a table: an item's data, and what is known of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """What is known of an item at the time it was drawn.

    Args:
        key: of the item, uint64; for `stepwell.reverb.Client.mutate_priorities`.
        probability: of being drawn, float64; 1.0 where the sampler has no choice.
        table_size: items in the table, this one included, int64.
        priority: float64.
        times_sampled: this time included, int32.

    Example:
        >>> info = SampleInfo.zeros()
        >>> info.key.dtype, info.probability.dtype, info.times_sampled.dtype
        (dtype('uint64'), dtype('float64'), dtype('int32'))
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any

    @classmethod
    def tf_dtypes(cls) -> SampleInfo:
        """Return the dtypes of the fields; of numpy, which TensorFlow takes."""
        return cls(np.uint64, np.float64, np.int64, np.float64, np.int32)

    @classmethod
    def tf_shapes(cls) -> SampleInfo:
        """Return the shapes of the fields: scalars."""
        return cls((), (), (), (), ())

    @classmethod
    def zeros(cls) -> SampleInfo:
        """Return an info of zeros."""
        return cls(*(np.zeros((), dtype)[()] for dtype in cls.tf_dtypes()))


class ReplaySample(NamedTuple):
    """An item, or one of its steps.

    Args:
        info: `SampleInfo`.
        data: its columns: a list of arrays, or the nest of the table's signature.

    Example:
        >>> sample = ReplaySample(info=SampleInfo.zeros(), data=[np.arange(3)])
        >>> info, data = sample
        >>> data[0].tolist()
        [0, 1, 2]
    """

    info: SampleInfo
    data: Any
