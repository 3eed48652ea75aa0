"""A batch: what the loader hands over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from stepwell.display.html import never_raising
from stepwell.errors import FeatureNotFoundError, WindowError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")

__all__ = ["Batch", "V", "nest"]


class Batch(dict[str, V]):
    """The arrays of one batch by key, and where in the epoch they come from.

    Args:
        values: key to array [B, ...]; object arrays [B] or [B, *window] for text, bytes and ragged features.
        epoch: number of the epoch, from 0.
        index: number of the batch within the epoch, as this rank counts them.
        valid: bool [B], array or tensor, False where an anchor was repeated to fill the batch (``pad=True``); None when
            all are real.
        anchors: int64 [B], always a numpy array: which anchor of the view each row is. None where rows are no anchors
            (replay), or come from several reads.

    Example:
        >>> import numpy as np
        >>> Batch({"action": np.zeros((64, 16, 2), "float32")}, epoch=1, index=3)
        <Batch epoch 1, index 3
          action: float32[64, 16, 2]>

    Notes:
        A plain dict otherwise; ``dict(batch)`` drops the attributes. Of ``to="jax"`` a pytree of its values and
        ``valid``. The arrays are views of memory that is recycled only when the last view of it (array, slice or
        tensor) is gone: keep what you like.
    """

    __slots__ = ("anchors", "epoch", "index", "valid")

    def __init__(
        self,
        values: Mapping[str, V] | Iterable[tuple[str, V]] = (),
        epoch: int = 0,
        index: int = 0,
        valid: Any = None,
        anchors: npt.NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(values)
        self.epoch = epoch
        self.index = index
        self.valid = valid
        self.anchors = anchors

    def with_values(self, values: Mapping[str, Any]) -> Batch:
        """Return a batch of other values of the same rows: what a model makes of them.

        Args:
            values: key to array, tensor or list, one entry a row.

        Example:
            >>> Batch({"action": [1, 2]}, epoch=3, index=7).with_values({"loss": [0.5, 0.25]})
            <Batch epoch 3, index 7
              loss: list[2]>
        """
        return Batch(values, self.epoch, self.index, self.valid, self.anchors)

    def show(self, keys: Iterable[str] | None = None, *, rows: int = 4) -> Figure:
        """Draw its first windows with matplotlib: a column a window, a line a key; padded steps pale or grey.

        Images (uint8 with sides of at least 8, floats of at least 16, and 1, 3 or 4 channels, last or first) are film
        strips, windows of numbers curves over their steps. Rows that were repeated to fill the batch say so.

        Args:
            keys: of the batch, nested ones with dots; default all that can be drawn, the first 24.
            rows: how many windows.

        Returns:
            ``matplotlib.figure.Figure``: a notebook shows it, ``savefig`` writes it, ``matplotlib.pyplot.show`` opens a
            window with it, where there are windows.

        Raises:
            FeatureNotFoundError: no such key.
            MissingDependencyError: no matplotlib.
        """
        from stepwell.loader.notebook import show_batch

        return show_batch(self, keys, rows)

    def __missing__(self, key: object) -> NoReturn:
        """Name the keys that are there."""
        raise FeatureNotFoundError(f"no key {key!r} in this batch. There are: {', '.join(self)}.")

    @never_raising
    def _repr_html_(self) -> str:
        from stepwell.loader.notebook import batch_html

        return batch_html(self)

    def __repr__(self) -> str:
        padded = "" if self.valid is None else f", {int(self.valid.sum())} of {len(self.valid)} valid"
        lines = "".join(f"\n  {line}" for line in _describe(self))
        return f"<Batch epoch {self.epoch}, index {self.index}{padded}{lines}>"


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts of values with dotted keys.

    Example:
        >>> nest({"observation.state": 1, "observation.image": 2, "action": 3})
        {'observation': {'state': 1, 'image': 2}, 'action': 3}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split(".")
        branch: Any = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
            if not isinstance(branch, dict):
                raise _clash(key)
        if leaf in branch:
            raise _clash(key)
        branch[leaf] = value
    return tree


def _clash(key: str) -> WindowError:
    return WindowError(
        f"key {key!r} cannot be nested: it, or its beginning, would be both a value and a group of values. "
        "Name one of the fields differently, or use nested=False."
    )


def _describe(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return one ``key: dtype[shape]`` line a value."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _describe(value, f"{prefix}{key}.")
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            dtype = str(value.dtype).removeprefix("torch.")
            lines.append(f"{prefix}{key}: {dtype}[{', '.join(str(n) for n in value.shape)}]")
        else:
            size = f"[{len(value)}]" if hasattr(value, "__len__") else ""
            lines.append(f"{prefix}{key}: {type(value).__name__}{size}")
    return lines
