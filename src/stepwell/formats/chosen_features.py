"""Which features of a data set a store gets: those that are not left out, of names and kinds that a store can have."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from stepwell.errors import FormatError, LeftOutWarning, SchemaError
from stepwell.formats.options import names_of
from stepwell.schema import Feature, Schema

__all__ = ["check_told_apart", "left_out", "store_schema", "warn_of_left_out", "with_told_finals"]


def check_told_apart(names: Iterable[str], where: str) -> None:
    """Refuse names that two have, once what nests is joined by dots.

    Args:
        names: dotted, one of each feature.
        where: what has them, for messages.

    Raises:
        FormatError: a name that comes twice.

    Example:
        >>> check_told_apart(["obs.pos", "action"], "a.hdf5")
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(f"{where}: two features are called {name!r}, one with a dot in its name. Rename it.")
        seen.add(name)


def left_out(ignore: Iterable[str] | str, known: Collection[str], where: str) -> frozenset[str]:
    """Return the names of features to leave out.

    Args:
        ignore: as given to a reader; a text has commas.
        known: all names.
        where: what has them, for messages.

    Raises:
        FormatError: a name that there is not.

    Example:
        >>> sorted(left_out("states, depth", ["action", "depth", "states"], "demo_0"))
        ['depth', 'states']
    """
    names = frozenset(names_of(ignore))
    unknown = sorted(names - set(known))
    if unknown:
        raise FormatError(f"ignore={unknown}: {where} has {', '.join(known)}.")
    return names


def warn_of_left_out(where: str, names: Sequence[str], reason: str) -> None:
    """Warn of what a reader leaves out though nobody asked for it.

    Args:
        where: what has it.
        names: of what is left out; none: nothing happens.
        reason: why, for the message.

    Warns:
        LeftOutWarning: names the first of them.
    """
    if names:
        told = f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        warnings.warn(f"{where}: {told[:1000]}: left out, {reason}.", LeftOutWarning, stacklevel=4)


def with_told_finals(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return features with final rows only where others without one tell how many steps there are.

    Example:
        >>> from stepwell.schema import Array
        >>> with_told_finals({"obs": Array(2, final=True)})
        {'obs': Array(2)}
    """
    has_steps = any(not feature.final for feature in features.values())
    return {name: feature if has_steps else feature.with_final(False) for name, feature in features.items()}


def store_schema(features: Mapping[str, Feature], where: str) -> Schema:
    """Return the schema of a store with the features of a data set.

    Args:
        features: by name; others allow names that a store, where each is a file's, does not.
        where: the file that they are from, for messages.

    Raises:
        FormatError: a name that a store cannot have, or two that differ only in case; it can be left out.

    Example:
        >>> from stepwell.schema import Array
        >>> store_schema({"left arm": Array(2)}, "meta/info.json")
        Traceback (most recent call last):
        ...
        stepwell.errors.FormatError: meta/info.json: feature name 'left arm' cannot be ... with ignore=['left arm'].
    """
    try:
        return Schema(features)
    except SchemaError as error:
        way_out = "".join(f" Leave it out with ignore=[{name!r}]." for name in _wrong_names(features))
        raise FormatError(f"{where}: {error}{way_out}") from error


def _wrong_names(features: Mapping[str, Feature]) -> Iterator[str]:
    """Yield the first name that no store has beside those before it."""
    taken: dict[str, Feature] = {}
    for name, feature in features.items():
        taken[name] = feature
        try:
            Schema(taken)
        except SchemaError:
            yield name
            return
