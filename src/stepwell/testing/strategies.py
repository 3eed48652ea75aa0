"""Hypothesis strategies: features, schemas, steps and episodes to put a store, or code that reads one, to the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from stepwell.errors import MissingDependencyError
from stepwell.schema import Array, Bytes, Feature, Image, Schema, Text
from stepwell.testing.stores import random_array

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MissingDependencyError.of("hypothesis", "testing") from error

__all__ = ["DTYPES", "LOSSLESS", "EpisodeData", "episodes", "features", "schemas", "steps", "values"]

DTYPES: tuple[npt.DTypeLike, ...] = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"),
    *("complex64", ">i4", ">f8", "datetime64[ns]", "S5", "U3"),
    [("position", "<f4", (2,)), ("count", "<i8")],
)
LOSSLESS = ("raw", "zstd", "png")
NAMES = ("action", "observation", "observation.image", "observation.depth", "reward", "task", "Note_1", "_x", "a-b.c")


class EpisodeSink(Protocol):
    """What `EpisodeData.write_to` needs of a writer."""

    def append(self, step: Mapping[str, Any], /) -> int: ...
    def end_episode(
        self, *, terminated: bool, truncated: bool, final: Mapping[str, Any] | None, **metadata: Any
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class EpisodeData:
    """One episode as plain Python values, before it is written.

    Args:
        steps: name to value, one mapping a step.
        final: values of the final row, or None when the episode has none.
        terminated: as for ``Writer.end_episode``.
        truncated: as for ``Writer.end_episode``.
        metadata: free metadata, JSON types.
    """

    steps: tuple[Mapping[str, Any], ...]
    final: Mapping[str, Any] | None = None
    terminated: bool = False
    truncated: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str) -> list[Any]:
        """Return one feature's values, the final row's last when there is one."""
        values = [step[name] for step in self.steps]
        return values if self.final is None or name not in self.final else [*values, self.final[name]]

    def write_to(self, writer: EpisodeSink) -> int:
        """Append the steps to a writer, end the episode, and return what ``end_episode`` does."""
        for step in self.steps:
            writer.append(step)
        return writer.end_episode(
            terminated=self.terminated, truncated=self.truncated, final=self.final, **self.metadata
        )


def features(
    *,
    kinds: Sequence[str] = ("array", "ragged", "image", "any size", "text", "bytes"),
    codecs: Sequence[str] = LOSSLESS,
    dtypes: Sequence[npt.DTypeLike] = DTYPES,
) -> st.SearchStrategy[Feature]:
    """Return a strategy of features.

    Args:
        kinds: which may come: "array" (fixed shape), "ragged" (an array whose first dimension varies), "image", images
            of "any size", "text", "bytes".
        codecs: which may come, where they fit the kind: "raw", "zstd", "png", "jpeg". Default: those that lose nothing.
        dtypes: of arrays.

    Returns:
        A strategy of `Feature`; shapes are small, sides of 1 to 9.
    """
    plain = st.sampled_from([name for name in codecs if name in ("raw", "zstd")] or ["raw"])
    sides = st.integers(1, 4)
    shapes = st.lists(sides, max_size=3).map(tuple)
    dtype, final = st.sampled_from(list(dtypes)), st.booleans()
    made: dict[str, st.SearchStrategy[Feature]] = {
        "array": st.builds(Array, shapes, dtype, codec=plain, final=final),
        "ragged": st.builds(
            Array, st.lists(sides, max_size=2).map(lambda inner: (None, *inner)), dtype, codec=plain, final=final
        ),
        "image": st.sampled_from(list(codecs)).flatmap(_images),
        "any size": st.sampled_from(list(codecs)).flatmap(lambda codec: _images(codec, is_any_size=True)),
        "text": st.builds(Text, codec=plain, final=final),
        "bytes": st.builds(Bytes, codec=plain, final=final),
    }
    return st.one_of([made[kind] for kind in kinds])


def _images(codec: str, *, is_any_size: bool = False) -> st.SearchStrategy[Feature]:
    """Return image features that the codec can store."""
    dtypes = {"jpeg": ["uint8"], "png": ["uint8", "uint16"]}.get(codec, ["uint8", "uint16", "float16", "float32"])
    channels = [(), (1,), (3,)] if codec == "jpeg" else [(), (1,), (3,), (4,)]
    side = st.none() if is_any_size else st.integers(1, 9)
    shapes = st.tuples(side, side, st.sampled_from(channels)).map(lambda s: (s[0], s[1], *s[2]))
    return st.builds(Image, shapes, st.sampled_from(dtypes), codec=st.just(codec), final=st.booleans())


def schemas(*, min_features: int = 1, max_features: int = 4, **kinds: Any) -> st.SearchStrategy[Schema]:
    """Return a strategy of schemas.

    Args:
        min_features: least number of features.
        max_features: greatest number of features, at most 9.
        kinds: as for `features`.

    Example:
        >>> from hypothesis import find
        >>> len(find(schemas(max_features=2), lambda schema: len(schema) == 2))
        2
    """
    names = st.sampled_from(NAMES)
    return st.dictionaries(names, features(**kinds), min_size=min_features, max_size=max_features).map(Schema)


def values(feature: Feature, *, max_size: int = 5, finite: bool = False) -> st.SearchStrategy[Any]:
    """Return a strategy of values of one feature, as a writer takes them.

    Args:
        feature: what the values are of.
        max_size: greatest first dimension of ragged arrays, greatest length of texts and bytes.
        finite: keep floats finite and small. Default: any bits, NaN and infinities among them, so compare bytes.
    """
    if feature.kind == "text":
        return st.text(max_size=max_size)
    if feature.kind == "bytes":
        return st.binary(max_size=max_size)
    sizes = st.integers(0, max_size) if feature.is_ragged else st.just(0)
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(lambda size, seed: random_array(feature, seed, size=size, finite=finite), sizes, seeds)


def steps(schema: Schema, **options: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of steps: a value of every feature of the schema; options as for `values`."""
    return st.fixed_dictionaries({name: values(feature, **options) for name, feature in schema.items()})


def episodes(
    schema: Schema, *, min_steps: int = 1, max_steps: int = 12, **options: Any
) -> st.SearchStrategy[EpisodeData]:
    """Return a strategy of episodes.

    Args:
        schema: what the steps hold.
        min_steps: least length.
        max_steps: greatest length.
        options: as for `values`.

    Returns:
        A strategy of `EpisodeData`; about half of them have a final row where the schema allows one.
    """
    finals: st.SearchStrategy[dict[str, Any] | None] = st.none()
    if schema.final_names:
        finals = finals | st.fixed_dictionaries({name: values(schema[name], **options) for name in schema.final_names})
    return st.builds(
        EpisodeData,
        steps=st.lists(steps(schema, **options), min_size=min_steps, max_size=max_steps).map(tuple),
        final=finals,
        terminated=st.booleans(),
        truncated=st.booleans(),
        metadata=st.dictionaries(st.sampled_from(["task", "success", "seed"]), st.integers(0, 9), max_size=2),
    )
