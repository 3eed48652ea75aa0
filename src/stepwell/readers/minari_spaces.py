"""What Minari writes of Gymnasium's spaces, as features of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.errors import FormatError
from stepwell.formats.reader import warn_of_left_out
from stepwell.schema import Array, Feature, Image, Text

__all__ = ["FLAGS", "Leaf", "check_steps", "episode_metadata", "final_of", "leaves_of", "warn_of_more"]

FLAGS = {"rewards": "float64", "terminations": "bool", "truncations": "bool"}
"""What every episode has beside its spaces, with the dtype that it has where the file does not say."""

# what has a row after the last action
FINAL = ("observations", "infos")

MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Leaf:
    """A space without others in it.

    Args:
        path: names from the root on, those of dicts and numbers of tuples: ``("observations", "pair", 0)``.
        feature: that holds a value of it; of pictures plain ones, though Minari stores some as JPEG files.
    """

    path: tuple[str | int, ...]
    feature: Feature

    @property
    def name(self) -> str:
        """The feature's name."""
        return ".".join(map(str, self.path))


def leaves_of(space: Any, root: str) -> dict[str, Leaf]:
    """Return the leaves of a space by name.

    Args:
        space: as Minari's metadata have it, JSON.
        root: what names begin with.

    Raises:
        FormatError: a space that no feature holds.

    Example:
        >>> box = {"type": "Box", "dtype": "float32", "shape": [2]}
        >>> found = leaves_of({"type": "Dict", "subspaces": {"pos": box}}, "observations")
        >>> [(name, str(leaf.feature)) for name, leaf in found.items()]
        [('observations.pos', 'raw 2 float32')]
    """
    found: dict[str, Leaf] = {}
    _add((root,), space, found)
    return found


def final_of(name: str, feature: Feature) -> Feature:
    """Return a feature as episodes have it: observations and infos with a final row."""
    return feature.with_final() if name.partition(".")[0] in FINAL else feature


def episode_metadata(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of an episode, with its number under a name that says whose it is."""
    return {"minari_episode" if name == "id" else name: value for name, value in told.items()}


def check_steps(told: Mapping[str, Any], length: int, where: str) -> None:
    """Refuse an episode of other steps than its metadata say.

    Args:
        told: of `episode_metadata`.
        length: steps that there are.
        where: the episode, for messages.

    Raises:
        FormatError: names both numbers.
    """
    steps = told.get("total_steps", length)
    if steps != length:
        raise FormatError(f"{where} has {length} steps, its metadata say total_steps {steps!r}. Fetch it again.")


def warn_of_more(there: Iterable[str], features: Collection[str], where: str) -> None:
    """Warn of observations and actions that no space describes, and of whatever else no feature is made of.

    Args:
        there: names of all that the first episode has, dotted.
        features: names of features.
        where: the episode, for messages.
    """
    # infos may be left out by an option
    more = [name for name in there if name not in features and not name.startswith("infos")]
    warn_of_left_out(where, more, "the data set's spaces do not describe them")


def _add(path: tuple[str | int, ...], space: Any, found: dict[str, Leaf]) -> None:
    kind = space.get("type") if isinstance(space, Mapping) else None
    inner = space.get("subspaces") if isinstance(space, Mapping) else None
    if len(path) > MAX_DEPTH:
        raise FormatError(f"{'.'.join(map(str, path))}: spaces lie {MAX_DEPTH} deep. Allowed: fewer.")
    if kind == "Dict" and isinstance(inner, Mapping):
        for name, each in inner.items():
            _add((*path, str(name)), each, found)
    elif kind == "Tuple" and isinstance(inner, list):
        for number, each in enumerate(inner):
            _add((*path, number), each, found)
    else:
        leaf = Leaf(path, _feature(".".join(map(str, path)), kind, space))
        found[leaf.name] = leaf


def _feature(name: str, kind: Any, space: Any) -> Feature:
    if kind == "Text":
        return Text()
    if kind == "Discrete":
        return Array((), _dtype(name, space.get("dtype", "int64")))
    if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
        raise FormatError(
            f"{name} is of the space {kind!r}. Read are: Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple."
        )
    shape, dtype = _shape(name, kind, space), _dtype(name, space.get("dtype", "int8" if "Binary" in kind else "int64"))
    return Image(shape) if kind == "Box" and dtype == np.uint8 and _is_picture(shape) else Array(shape, dtype)


def _shape(name: str, kind: str, space: Mapping[str, Any]) -> tuple[int, ...]:
    shape = space.get("shape")
    if kind == "MultiBinary" and shape is None:
        shape = space.get("n")
    if kind == "MultiDiscrete" and shape is None:
        shape = list(np.shape(space.get("nvec", ())))
    shape = [shape] if isinstance(shape, int) else shape
    if not isinstance(shape, list) or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in shape):
        raise FormatError(f"{name} has shape {shape!r}. Allowed: a list of sizes.")
    return tuple(shape)


def _dtype(name: str, text: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(text)
    except TypeError as error:
        raise FormatError(f"{name} has dtype {text!r}. Allowed: numpy's names of numbers.") from error
    if found.kind not in "biuf":
        raise FormatError(f"{name} has dtype {text!r}. Allowed: numbers and bool.")
    return found


def _is_picture(shape: tuple[int, ...]) -> bool:
    return 0 not in shape and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)))
