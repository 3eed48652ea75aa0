"""A function of one's own over the episodes of a dataset: which one, and which features come out."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from stepwell.errors import FormatError
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Feature, Schema, flatten, infer_feature
from stepwell.store.values import HasRows

__all__ = ["Transform", "transform_of", "transformed_schema"]

Transform = Callable[[EpisodeData], EpisodeData]


def transform_of(given: Transform | str | None) -> Transform | None:
    """Return a function that may be given as ``"module:function"``.

    Raises:
        FormatError: there is no such function.
    """
    if not isinstance(given, str):
        return given
    module, _, name = given.partition(":")
    try:
        found: Transform = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FormatError(
            f'transform={given!r}: {error}. Give "module:function" of a module on sys.path; on the command line, '
            "--import MODULE finds one in the current directory."
        ) from error
    return found


def transformed_schema(episode: EpisodeData, before: Schema) -> Schema:
    """Return the features of an episode that was transformed.

    Args:
        episode: the first one, as it came out.
        before: the features it had before.

    Raises:
        FormatError: a column that tells no feature.
        SchemaError: a value that no store has.
    """
    return Schema({name: _feature(name, values, before) for name, values in flatten(episode.columns)})


def _feature(name: str, values: Any, before: Schema) -> Feature:
    if isinstance(values, HasRows):
        own = getattr(values, "feature", before.get(name))
        if not isinstance(own, Feature):
            raise FormatError(f"transform= gives {name!r} as encoded rows. Keep their name, or give arrays.")
        return own
    if len(values) == 0:
        raise FormatError(f"transform= gives no steps of {name!r}, of the first episode.")
    found = infer_feature(values[0])
    known = before.get(name)
    is_same = known is not None and (known.kind, known.np_dtype) == (found.kind, found.np_dtype)
    return known if is_same and known is not None and known.shape in (found.shape, (None, *found.shape[1:])) else found
