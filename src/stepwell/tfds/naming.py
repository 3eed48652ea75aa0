"""Which features of a dataset are read, and what they are called in a store.

::

    steps/observation/image         observation.image            a column
    steps/is_first                  steps.is_first               stepwell computes an is_first of its own
    episode_metadata/file_path      metadata["file_path"]
    label (no steps)                label                        a column: the example is one step
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.errors import FeatureNotFoundError, FormatError
from stepwell.schema import RESERVED
from stepwell.tfds.features import Fields, Node, Placed, Repeated, walk
from stepwell.windows.fields import VIRTUAL_DTYPES

__all__ = ["Chosen", "choose"]

STEPS, METADATA = "steps", "episode_metadata"
# what stepwell says of an episode itself
OWN_METADATA = frozenset({"terminated", "truncated", "final", "columns", "self", "tfds_split"})
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The features that are read.

    Args:
        steps: path of the sequence of steps; None where an example is one step.
        columns: name in the store to leaf.
        sources: name in the store to the one in the dataset, below the steps.
        metadata: names of an entry, from the outermost, and leaf.
    """

    steps: tuple[str, ...] | None
    columns: Mapping[str, Placed]
    sources: Mapping[str, str]
    metadata: Sequence[tuple[tuple[str, ...], Placed]]

    def flag(self, name: str, tree: Node) -> str | None:
        """Return the key of a flag of steps, such as ``is_last``; None where there is none."""
        if self.steps is None:
            return None
        wanted = "/".join((*self.steps, name))
        return next((wanted for found in walk(tree) if found.key == wanted and found.leaf.dtype == "bool"), None)


def choose(
    tree: Node,
    *,
    steps: str | None = None,
    features: Collection[str] | None = None,
    ignore: Collection[str] = (),
    rename: Mapping[str, str] | None = None,
) -> Chosen:
    """Return which features are read, and their names.

    Args:
        tree: of features.json.
        steps: path of the sequence whose items are the steps, with dots; default: the Dataset there is.
        features: names to keep, and with each what is nested in it; default: all.
        ignore: the same, to leave out.
        rename: name to the one in the store.

    Raises:
        FeatureNotFoundError: a name that the dataset does not have.
        FormatError: no such steps, nothing left, or two features of one name.
    """
    path = _steps_path(tree, steps)
    placed = {_dotted(found, path): found for found in walk(tree)}
    for names in (features or (), ignore, rename or ()):
        _check_known(names, placed)
    kept = {
        name: found
        for name, found in placed.items()
        if (features is None or _is_named(name, features)) and not _is_named(name, ignore)
    }
    columns: dict[str, Placed] = {}
    sources: dict[str, str] = {}
    for name, found in kept.items():
        if path is None or found.path[: len(path)] == path:
            stored = (rename or {}).get(name) or (rename or {}).get(_stored(name)) or _stored(name)
            if stored in columns:
                raise FormatError(f"two features would be called {stored!r}. Give one another name by rename=.")
            columns[stored], sources[stored] = found, name
    if not columns:
        raise FormatError(f"no features of steps are left. There are: {', '.join(placed) or 'none'}.")
    told = [found for found in kept.values() if path is not None and found.path[: len(path)] != path]
    return Chosen(path, columns, sources, [(_entry(found, told), found) for found in told])


def _steps_path(tree: Node, steps: str | None) -> tuple[str, ...] | None:
    top = tree.features if isinstance(tree, Fields) else {}
    if steps is None:
        found = [name for name, node in top.items() if isinstance(node, Repeated) and node.is_dataset]
        if len(found) > 1 and STEPS not in found:
            raise FormatError(
                f'several sequences could be the steps: {", ".join(found)}. Say which: steps="{found[0]}".'
            )
        return None if not found else (STEPS if STEPS in found else found[0],)
    node: Node = tree
    path = tuple(steps.replace("/", ".").split("."))
    for name in path:
        if not isinstance(node, Fields) or name not in node.features:
            raise FormatError(f"steps={steps!r}: there is no such feature. There are: {', '.join(top)}.")
        node = node.features[name]
    if not isinstance(node, Repeated):
        raise FormatError(f"steps={steps!r} is no sequence. Name one: a Dataset, a Sequence or a Video.")
    return path


def _dotted(found: Placed, steps: tuple[str, ...] | None) -> str:
    """Return a feature's name: below the steps, or in the example."""
    if steps is not None and found.path[: len(steps)] == steps:
        return ".".join(found.path[len(steps) :] or steps[-1:])
    return ".".join(found.path)


def _is_named(name: str, wanted: Collection[str]) -> bool:
    """Return whether it, or what it is nested in, is one of some names: of the dataset, or of the store."""
    return any(own == one or own.startswith(f"{one}.") for one in wanted for own in (name, _stored(name)))


def _check_known(names: Collection[str], placed: Mapping[str, Any]) -> None:
    for name in names:
        if not any(_is_named(known, [name]) for known in placed):
            raise FeatureNotFoundError(f"no feature {name!r}. There are: {', '.join(placed)}.")


def _stored(name: str) -> str:
    """Return a name that a store may have, and that hides none of those it computes."""
    plain = NOT_IN_NAMES.sub("_", name)
    is_taken = plain in VIRTUAL_DTYPES or plain in RESERVED
    return f"{STEPS}.{plain}" if is_taken or plain.startswith((".", "-")) else plain


def _entry(found: Placed, told: Sequence[Placed]) -> tuple[str, ...]:
    """Return where a feature of an episode stands in its metadata: those of ``episode_metadata`` at the top."""
    path = found.path
    tops = {other.path[0] for other in told} | OWN_METADATA
    if len(path) > 1 and path[0] == METADATA and path[1] not in tops:
        return path[1:]
    return (f"{STEPS}.{path[0]}", *path[1:]) if path[0] in OWN_METADATA else path
