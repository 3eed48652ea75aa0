"""A column that was added is as one that was recorded; one that was not is not there at all."""

import errno
import itertools
import os

import numpy as np
import pytest

import stepwell
from stepwell.errors import DiskFullError, ReadOnlyError, SchemaError, StepError, StoreBusyError

RETURN = stepwell.Array((), "float64")


def returns_of(episode):
    return np.arange(episode.length) + 100.0 * episode.metadata["number"]


def assert_has_returns(store, name="return"):
    for episode in store:
        assert episode[name].tolist() == returns_of(episode).tolist()


def columns(store, dtype="float64"):
    return [returns_of(episode).astype(dtype) for episode in store]


FORMS = {
    "callable": lambda store: returns_of,
    "list": columns,
    "lists of floats": lambda store: [column.tolist() for column in columns(store)],
    "mapping": lambda store: dict(enumerate(columns(store))),
    "array": lambda store: np.concatenate(columns(store)),
}


@pytest.mark.parametrize("form", FORMS)
def test_values_may_be_given_in_any_form(wells, form):
    store = wells.make(discard=True)
    follower = stepwell.open(store.path, mode="r")
    episode = follower[3]
    store.add_column("return", RETURN, FORMS[form](store))
    assert list(store.schema) == [*wells.features, "return"]
    assert_has_returns(store)
    assert wells.shown(store) == list(range(7))
    assert episode["action"].shape == (4, 2)
    assert follower.refresh()
    assert_has_returns(follower)
    assert_has_returns(stepwell.open(store.path))
    wells.assert_sound(store)


ENCODED = {
    "png": (stepwell.Image((4, 4), "uint8", codec="png"), lambda e: np.full((e.length, 4, 4), e.index, "uint8")),
    "zstd": (stepwell.Array(3, "int16", codec="zstd"), lambda e: np.full((e.length, 3), e.index, "int16")),
    "text": (stepwell.Text(), lambda e: [f"{e.index}/{step}" for step in range(e.length)]),
    "ragged": (stepwell.Array((None, 2)), lambda e: [np.full((s, 2), e.index, "float32") for s in range(e.length)]),
    "empty": (stepwell.Array((0, 2)), lambda e: np.zeros((e.length, 0, 2), "float32")),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_every_kind_of_feature_can_be_added(wells, kind):
    feature, values = ENCODED[kind]
    store = wells.make(discard=True)
    store.delete_episodes([1, 4])
    store.add_column("more", feature, values)
    for episode in store:
        assert all(np.array_equal(a, b) for a, b in zip(episode["more"], values(episode), strict=True))
    wells.assert_sound(store)
    store.compact()
    assert wells.shown(store) == [0, 2, 3, 5, 6]
    wells.assert_sound(store)


def test_a_final_feature_takes_a_value_of_the_final_row(wells):
    store = wells.make()
    store.add_column("value", stepwell.Array((), "int64"), lambda e: e["observation"] + 1, final=True)
    assert store.schema["value"].final
    for episode in store:
        assert episode["value"].tolist() == (episode["observation"] + 1).tolist()
    with pytest.raises(StepError, match="episode 1: feature 'other': got 2 values, it has 3 rows"):
        store.add_column("other", RETURN, lambda e: np.zeros(e.length), final=True)
    rows = int(store.episodes.rows.sum())
    store.add_column("other", RETURN, np.arange(float(rows)), final=True)
    assert np.concatenate([episode["other"] for episode in store]).tolist() == list(range(rows))


@pytest.mark.parametrize("codec", ["raw", "zstd", "lz4", "png", "delta"])
def test_a_final_feature_may_be_added_where_episodes_are_hidden(tmp_path, codec):
    shape, dtype = ((4, 4), "uint8") if codec in ("png", "delta") else ((2,), "int32")
    make = stepwell.Image if dtype == "uint8" else stepwell.Array
    store = stepwell.create(tmp_path / "a.well", {"t": stepwell.Array((), "int64", final=True)})
    with store.writer() as writer:
        for length in (2, 3, 4):
            writer.add_episode({"t": np.arange(length)}, final={"t": length})
        writer.append(t=0)
        writer.discard_episode()
    store.delete_episodes([1])
    store.add_column(
        "x", make(shape, dtype, codec=codec, final=True), lambda e: np.full((len(e["t"]), *shape), 7, dtype)
    )
    assert [len(episode["x"]) for episode in store] == [3, 5]
    assert all((episode["x"] == 7).all() for episode in store)
    assert float(np.min(store.statistics()["x"].min)) == 7
    assert not store.verify(deep=True).findings


def test_statistics_are_those_of_a_recorded_column(wells):
    store = wells.make(discard=True)
    recorded = {name: found.to_json() for name, found in store.statistics().items()}
    store.add_column("again", wells.features["action"], lambda episode: episode["action"])
    added = {name: found.to_json() for name, found in stepwell.open(store.path).statistics().items()}
    assert added.pop("again") == recorded["action"]
    assert added == recorded


REFUSED = {
    "dtype": (lambda e: np.zeros(e.length, "float32"), "episode 0: feature 'return': got dtype float32"),
    "shape": (lambda e: np.zeros((e.length, 2)), "episode 0: feature 'return': got shape"),
    "length": (lambda e: np.zeros(e.length + (e.index == 2)), "episode 2: feature 'return': got 4 values, it has 3"),
    "list": ([[0.0]] * 3, "a list of 3 columns for 7 episodes"),
    "mapping": ({0: [0.0]}, "values of 1 episode"),
    "array": (np.zeros(5), r"shape \(5,\); all 7 episodes have 16 rows"),
    "scalar": (1.0, r"shape \(\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_do_not_fit_are_refused_and_leave_no_trace(wells, case):
    store = wells.make()
    before = contents(store.path)
    values, message = REFUSED[case]
    with pytest.raises(StepError, match=message):
        store.add_column("return", RETURN, values)
    assert contents(store.path) == before
    assert "return" not in store.schema
    store.add_column("return", RETURN, returns_of)
    assert_has_returns(store)


def contents(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "maintenance"
    }


def test_names_that_are_taken_and_codecs_that_do_not_fit_are_refused(wells):
    store = wells.make()
    with pytest.raises(SchemaError, match="'action' already"):
        store.add_column("action", RETURN, returns_of)
    with pytest.raises(SchemaError, match="'more'"):
        store.add_column("more", stepwell.Image((4, 4), "float32", codec="jpeg"), returns_of)
    with pytest.raises(ReadOnlyError):
        stepwell.open(store.path, mode="r").add_column("more", RETURN, returns_of)
    with pytest.raises(SchemaError, match="no features yet"):
        stepwell.create(wells.folder / "empty.well").add_column("more", RETURN, returns_of)


def test_a_live_writer_is_not_disturbed(wells):
    store = wells.make(range(2), segment_bytes=10**6)
    with store.writer() as writer:
        writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)
        with pytest.raises(StoreBusyError, match="is being recorded"):
            store.add_column("return", RETURN, returns_of)
    store.add_column("return", RETURN, returns_of)
    assert_has_returns(store)


def test_a_writer_of_another_process_learns_of_the_column_before_its_next_segment(wells):
    store = wells.make(range(2))
    other = stepwell.open(store.path)
    writer = other.writer()
    store.add_column("return", RETURN, returns_of)
    with pytest.raises(StepError, match="feature 'return' was added"):
        writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)
    other.refresh()
    with pytest.raises(StepError, match="feature 'return' is missing"):
        writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)
    writer.add_episode(wells.episode_of(2, 3) | {"return": [200.0, 201.0, 202.0]}, truncated=True, number=2)
    writer.close()
    store.refresh()
    assert wells.shown(store) == [0, 1, 2]
    assert_has_returns(store)
    wells.assert_sound(store)


def test_a_checkpoint_does_not_get_the_column(wells):
    store = wells.make()
    copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"))
    store.add_column("return", RETURN, returns_of)
    assert copy.schema == stepwell.open(copy.path).schema != store.schema
    assert wells.shown(copy) == list(range(7))
    wells.assert_sound(copy)


def test_a_kill_at_any_call_leaves_the_store_with_or_without_the_column(wells):
    store = wells.make(range(4), name="template/a.well", segment_bytes=500)

    def add(folder):
        stepwell.Store(str(folder / "a.well")).add_column("return", RETURN, returns_of)

    outcomes = set()
    for folder in wells.kills(store.path.parent, add):
        reader = stepwell.open(folder / "a.well", mode="r")
        assert wells.shown(reader) == list(range(4))
        store = stepwell.open(folder / "a.well")
        assert wells.shown(store) == list(range(4))
        wells.assert_sound(store)
        is_there = "return" in store.schema
        outcomes.add(is_there)
        if not is_there:
            assert not list(store.path.rglob("return.*"))
            store.add_column("return", stepwell.Array((), "float64", codec="zstd"), returns_of)
            wells.assert_sound(store)
        assert_has_returns(store)
    assert outcomes == {False, True}


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate", "mkdir", "link", "replace", "fsync"])
def test_a_disk_that_is_full_at_any_call_leaves_the_store_as_before(wells, monkeypatch, call):
    store = wells.make(range(4))
    before = contents(store.path)
    original = getattr(os, call)
    for failing in range(0, 1000, 2):
        calls = itertools.count()

        def call_or_fail(*args, calls=calls, failing=failing, **options):
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, "no space")
            return original(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, call_or_fail)
            try:
                store.add_column("return", RETURN, returns_of)
                break
            except DiskFullError:
                pass
        assert wells.shown(store) == list(range(4))
        if call == "fsync" and "return" in stepwell.open(store.path).schema:
            # the last thing to wait for is the name of what the column is in: it is there whole
            store.refresh()
            break
        assert contents(store.path) == before
    assert failing > 0
    assert_has_returns(store)
    wells.assert_sound(store)
