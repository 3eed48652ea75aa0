"""Strategies give what stores take: whatever they draw can be written, and comes back bit for bit."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.schema import Array, Bytes, Feature, Schema, Text
from stepwell.testing import episodes, features, schemas, steps, values


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return (a.shape, a.tobytes()) == (b.shape, b.tobytes())


def row_of(column: Any, i: int) -> Any:
    # column[i] of scalars in foreign byte order would be a scalar in the native one
    return column[i, ...] if isinstance(column, np.ndarray) else column[i]


@settings(max_examples=15)
@given(st.data())
def test_any_episodes_of_any_schema_come_back_bit_for_bit(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    drawn = data.draw(st.lists(episodes(schema, max_steps=5), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as directory:
        store = stepwell.create(
            Path(directory) / "any.well", schema, segment_bytes=data.draw(st.sampled_from([1, 1 << 28]))
        )
        with store.writer() as writer:
            for episode in drawn:
                episode.write_to(writer)
        store.refresh()
        assert len(store) == len(drawn)
        for stored, episode in zip(store, drawn, strict=True):
            assert (stored.length, stored.terminated, stored.truncated) == (
                len(episode),
                episode.terminated,
                episode.truncated,
            )
            assert stored.metadata == dict(episode.metadata)
            for name in schema:
                column = episode.column(name)
                assert len(stored[name]) == len(column)
                assert all(same(row_of(stored[name], i), value) for i, value in enumerate(column))


@settings(max_examples=50)
@given(st.data())
def test_values_have_the_features_dtype_and_shape(data: st.DataObject) -> None:
    feature = data.draw(features(kinds=["array", "ragged", "image", "any size"]))
    value = data.draw(values(feature, max_size=3))
    assert value.dtype == feature.np_dtype
    assert all(want in (None, got) for want, got in zip(feature.shape, value.shape, strict=True))
    assert value.flags.c_contiguous


@settings(max_examples=20)
@given(values(Array(5, "float32"), finite=True))
def test_finite_values_are_finite(value: np.ndarray) -> None:
    assert np.isfinite(value).all()


@settings(max_examples=30)
@given(features(kinds=["text", "image"], codecs=["jpeg"]))
def test_features_keep_to_the_kinds_and_codecs_asked_for(feature: Feature) -> None:
    assert (feature.kind, feature.codec) in {("text", "raw"), ("image", "jpeg")}


@settings(max_examples=20)
@given(steps(Schema({"a": Text(), "b": Bytes(), "c": Array()})))
def test_steps_have_every_feature_in_order(step: dict[str, Any]) -> None:
    assert {name: type(value) for name, value in step.items()} == {"a": str, "b": bytes, "c": np.ndarray}


def test_column_of_an_episode_ends_with_the_final_value() -> None:
    from stepwell.testing import EpisodeData

    episode = EpisodeData(({"obs": 1, "act": 2},), final={"obs": 3})
    assert (episode.column("obs"), episode.column("act"), len(episode)) == ([1, 3], [2], 1)


def test_hypothesis_and_pytest_are_imported_only_by_what_needs_them() -> None:
    code = (
        "import sys, stepwell.testing as t; t.tiny_store, t.FailingCodec, t.random_array;"
        "assert not {'hypothesis', 'pytest'} & set(sys.modules); t.features; assert 'hypothesis' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
