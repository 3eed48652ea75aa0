"""Recording: what a writer takes, refuses and stores."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.errors import (
    EpisodeNotFoundError,
    ReadOnlyError,
    SchemaError,
    StepError,
    StepwellError,
    StoreExistsError,
    WriterClosedError,
)
from stepwell.schema import Array, Bytes, Feature, Image, Schema, Text, Video
from stepwell.store import Store, create, open
from stepwell.testing import EpisodeData, episodes, schemas

SCHEMA = Schema({"observation": Array(3, final=True), "action": Array((), "int32")})
QUICK = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def step(value: float = 0.0) -> dict[str, Any]:
    return {"observation": np.full(3, value, np.float32), "action": 1}


def as_bytes(feature: Feature, value: Any) -> Any:
    return value if feature.kind in ("text", "bytes") else np.ascontiguousarray(value).tobytes()


def assert_column(feature: Feature, stored: Any, expected: list[Any]) -> None:
    if feature.is_ragged:
        assert [as_bytes(feature, value) for value in stored] == [as_bytes(feature, value) for value in expected]
    else:
        wanted = np.array(expected, feature.np_dtype).reshape(len(expected), *feature.fixed_shape)
        assert stored.dtype == wanted.dtype
        assert np.ascontiguousarray(stored).tobytes() == np.ascontiguousarray(wanted).tobytes()


def assert_holds(store: Store, written: list[EpisodeData]) -> None:
    assert store.schema is not None
    assert len(store) == len(written)
    for episode, data in zip(store, written, strict=True):
        assert episode.length == len(data)
        assert episode.has_final == (data.final is not None)
        assert (episode.terminated, episode.truncated) == (data.terminated, data.truncated)
        assert episode.metadata == dict(data.metadata)
        for name, feature in store.schema.items():
            assert_column(feature, episode[name], data.column(name))


@st.composite
def recordings(draw: st.DrawFn) -> tuple[Schema, list[EpisodeData]]:
    schema = draw(schemas())
    return schema, draw(st.lists(episodes(schema, max_steps=5), max_size=5))


@QUICK
@given(recording=recordings(), segment_bytes=st.sampled_from([1, 300, 1 << 28]), data=st.data())
def test_what_is_written_is_read_back_whatever_the_way_in(
    tmp_path: Path, recording: tuple[Schema, list[EpisodeData]], segment_bytes: int, data: st.DataObject
) -> None:
    schema, written = recording
    path = tmp_path / os.urandom(8).hex()
    with create(path, schema, segment_bytes=segment_bytes).writer() as out:
        for episode in written:
            match data.draw(st.sampled_from(["step", "batch", "whole"])):
                case "step":
                    episode.write_to(out)
                case "batch":
                    cut = data.draw(st.integers(0, len(episode)))
                    for steps in (episode.steps[:cut], episode.steps[cut:]):
                        out.append_batch({name: [values[name] for values in steps] for name in schema})
                    out.end_episode(
                        terminated=episode.terminated,
                        truncated=episode.truncated,
                        final=episode.final,
                        **episode.metadata,
                    )
                case "whole":
                    apart = len(schema.final_names) == len(schema) or data.draw(st.booleans())
                    columns = {name: episode.column(name)[: len(episode) if apart else None] for name in schema}
                    out.add_episode(
                        columns,
                        terminated=episode.terminated,
                        truncated=episode.truncated,
                        final=episode.final if apart else None,
                        **episode.metadata,
                    )
    assert_holds(open(path), written)


def test_steps_are_visible_to_a_reader_as_soon_as_append_returns(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    reader = open(tmp_path / "a.well", mode="r")
    with store.writer() as out:
        for count in range(1, 200):
            out.append(step(count))
            assert reader.refresh()
            assert reader.num_steps == count
            assert reader[0].is_open
            assert reader[0]["observation"][-1].tolist() == [count] * 3
        assert not reader.refresh()
        out.end_episode(final={"observation": np.zeros(3, np.float32)})
        assert reader.refresh()
        assert (reader.num_steps, reader[0].is_open, reader[0].has_final) == (199, False, True)
    assert reader.refresh()
    assert reader.segments[0].is_sealed
    assert not reader.refresh()


def test_closing_a_writer_refreshes_the_store_that_made_it_and_no_other(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    other = open(tmp_path / "a.well")
    with store.writer() as out:
        out.append(step())
        out.end_episode()
        assert len(store) == 0
    assert (len(store), len(other)) == (1, 0)


def test_a_length_is_stable_until_refresh(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    reader = open(tmp_path / "a.well", mode="r")
    with store.writer() as out:
        out.append(step())
        out.end_episode()
    assert len(reader) == 0
    reader.refresh()
    assert len(reader) == 1


def test_step_ids_are_segment_and_row_and_never_reused(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA, segment_bytes=1)
    ids = []
    with store.writer() as out:
        for _ in range(3):
            ids += [out.append(step()), out.append(step())]
            out.end_episode()
    assert [(i >> 32, i & 0xFFFFFFFF) for i in ids] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    for directory in (tmp_path / "a.well" / "segments").iterdir():
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    with store.writer() as out:
        assert out.append(step()) >> 32 == 3


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"observation": np.zeros(3, np.float32)}, "'action' is missing"),
        ({**step(), "reward": 1.0}, "'reward' is not in the schema"),
        ({**step(), "observation": np.zeros(3)}, "'observation': got dtype float64"),
        ({**step(), "observation": np.zeros((1, 3), np.float32)}, "'observation': got shape (1, 3)"),
        ({**step(), "observation": [1.0, 2.0]}, "'observation': got shape (2,)"),
        ({**step(), "action": 1.5}, "'action'"),
        ({**step(), "action": 1 << 40}, "'action'"),
        ({**step(), "action": "left"}, "'action'"),
        ({**step(), "action": None}, "'action': got None"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_the_feature_s_name_before_anything_is_written(
    tmp_path: Path, bad: dict[str, Any], named: str
) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        out.append(step(1))
        with pytest.raises(StepError, match=named.replace("(", r"\(").replace(")", r"\)")):
            out.append(bad)
        out.append(step(2))
        out.end_episode()
    store.refresh()
    assert store[0]["observation"][:, 0].tolist() == [1, 2]


def test_a_batch_with_one_bad_column_writes_nothing(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        with pytest.raises(StepError, match="'action'"):
            out.append_batch({"observation": np.zeros((4, 3), np.float32), "action": np.zeros(4)})
        with pytest.raises(StepError, match="different lengths"):
            out.append_batch({"observation": np.zeros((4, 3), np.float32), "action": np.zeros(5, np.int32)})
        with pytest.raises(StepError, match="not a column"):
            out.append_batch({"observation": np.zeros((4, 3), np.float32), "action": 3})
    assert open(tmp_path / "a.well").num_steps == 0


def test_python_values_are_converted_when_the_dtype_holds_them(tmp_path: Path) -> None:
    schema = {
        "a": Array(2),
        "b": Array((), "uint8"),
        "c": Array((), "bool"),
        "d": Array((), "float32"),
        "e": Array((), "int64"),
    }
    store = create(tmp_path / "a.well", schema)
    with store.writer() as out:
        out.append(a=[1, 2.5], b=255, c=True, d=3, e=np.int32(7))
        out.append(a=(0, 0), b=np.uint8(1), c=np.True_, d=np.float64(0.5), e=-1)
        out.end_episode()
    store.refresh()
    assert {name: store[0][name].tolist() for name in schema} == {
        "a": [[1, 2.5], [0, 0]],
        "b": [255, 1],
        "c": [True, True],
        "d": [3, 0.5],
        "e": [7, -1],
    }


def test_nested_mappings_become_dotted_names(tmp_path: Path) -> None:
    store = create(
        tmp_path / "a.well",
        {"observation.image": Image((16, 16, 3), final=True), "observation.state": Array(2, final=True)},
    )
    frame = np.arange(768, dtype=np.uint8).reshape(16, 16, 3)
    with store.writer() as out:
        out.append({"observation": {"image": frame, "state": [1, 2]}})
        out.end_episode(final={"observation": {"image": frame, "state": [3, 4]}})
        with pytest.raises(StepError, match=r"'observation.state' is missing"):
            out.append({"observation": {"image": frame}})
    store.refresh()
    assert store[0]["observation.state"].tolist() == [[1, 2], [3, 4]]


def test_a_store_without_a_schema_takes_that_of_its_first_step(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well")
    assert store.schema is None
    with store.writer() as out:
        out.append({"observation": np.zeros(4, np.float32), "action": 2, "task": "push"})
        out.end_episode(final={"observation": np.ones(4, np.float32)})
    expected = Schema({"observation": Array(4, final=True), "action": Array((), "int64"), "task": Text()})
    assert store.schema == expected
    assert open(tmp_path / "a.well").schema == expected


def test_two_writers_of_a_store_without_a_schema_agree_on_the_first(tmp_path: Path) -> None:
    create(tmp_path / "a.well")
    first, second = open(tmp_path / "a.well"), open(tmp_path / "a.well")
    with first.writer() as a, second.writer() as b:
        a.append(x=1)
        with pytest.raises(StepError, match="'y' is not in the schema"):
            b.append(y=1)
        b.append(x=2)


def test_whole_episodes_tell_which_features_have_a_final_row(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well")
    with store.writer() as out:
        out.add_episode({"state": np.arange(4), "action": np.arange(3), "name": ["a", "b", "c"]}, truncated=True)
    assert store.schema is not None
    assert store.schema.final_names == ("state",)
    store.refresh()
    assert (store[0].length, store[0]["state"].tolist(), store[0]["name"]) == (3, [0, 1, 2, 3], ["a", "b", "c"])


def test_a_refused_first_episode_leaves_no_schema(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well")
    with store.writer() as out:
        with pytest.raises(StepError, match="different lengths"):
            out.add_episode({"state": np.arange(6), "action": np.arange(3)})
        assert store.schema is None
        out.add_episode({"position": np.arange(3)})
    assert list(store.schema or ()) == ["position"]


def test_final_values_are_those_of_the_features_that_have_one(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        out.append(step())
        with pytest.raises(StepError, match="'observation'"):
            out.end_episode(final={"action": 1})
        with pytest.raises(StepError, match="'observation': got shape"):
            out.end_episode(final={"observation": np.zeros(4, np.float32)})
        out.end_episode(final={"observation": np.zeros(3, np.float32)})
    store.refresh()
    assert (len(store), store[0].has_final) == (1, True)


def test_an_episode_needs_a_step(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        with pytest.raises(StepError, match="no steps"):
            out.end_episode()
        with pytest.raises(StepError, match="at least one step"):
            out.add_episode({"observation": np.zeros((0, 3), np.float32), "action": np.zeros(0, np.int32)})
        out.append(step())
        with pytest.raises(StepError, match="an episode is open"):
            out.add_episode({"observation": np.zeros((1, 3), np.float32), "action": np.zeros(1, np.int32)})


def test_metadata_that_json_cannot_hold_is_refused_and_the_episode_stays_open(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        out.append(step())
        with pytest.raises(StepError, match="callback"):
            out.end_episode(callback=print)
        out.end_episode(score=np.float32(0.5), path=np.arange(2), task="stoß")
    store.refresh()
    assert store[0].metadata == {"score": 0.5, "path": [0, 1], "task": "stoß"}


def test_discarded_steps_are_never_shown_again(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        out.append(step(1))
        out.discard_episode()
        out.append(step(2))
        out.end_episode()
        store.refresh()
        assert [episode["observation"][0, 0] for episode in store] == [2]
        out.discard_episode()  # nothing is open: nothing happens
    store.refresh()
    assert [episode["observation"][0, 0] for episode in store] == [2]
    assert store.statistics()["observation"].count.tolist() == [1, 1, 1]


def test_close_keeps_an_open_episode_and_marks_it_interrupted(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    out = store.writer()
    out.append(step())
    out.close()
    out.close()
    store.refresh()
    assert (store[0].interrupted, store[0].terminated, store[0].truncated) == (True, False, False)
    for call in (lambda: out.append(step()), out.end_episode, out.flush, out.discard_episode):
        with pytest.raises(WriterClosedError, match="closed"):
            call()


def test_a_writer_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    store.writer().close()
    assert not store.refresh()
    assert list((tmp_path / "a.well" / "segments").iterdir()) == []


def test_an_abandoned_writer_is_recovered_like_a_killed_one(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    out = store.writer()
    out.append(step())
    del out
    recovered = open(tmp_path / "a.well")
    assert recovered[0].interrupted
    assert recovered.segments[0].is_sealed


@pytest.mark.parametrize("sync", ["none", "episode", "step"])
def test_every_sync_stores_the_same(tmp_path: Path, sync: Any) -> None:
    store = create(tmp_path / "a.well", {**SCHEMA, "blob": Bytes()})
    with store.writer(sync=sync) as out:
        for value in range(3):
            out.append({**step(value), "blob": b"x" * value})
        out.flush()
        out.end_episode()
    store.refresh()
    assert store[0]["observation"][:, 0].tolist() == [0, 1, 2]
    assert store[0]["blob"] == [b"", b"x", b"xx"]


def test_create_refuses_what_is_there_and_open_what_is_not(tmp_path: Path) -> None:
    create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(StoreExistsError, match="is a store already"):
        create(tmp_path / "a.well", SCHEMA)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreExistsError, match="something else"):
        create(tmp_path / "file", SCHEMA)
    with pytest.raises(FileNotFoundError, match="no store at"):
        open(tmp_path / "b.well")
    assert create(tmp_path / "a.well", SCHEMA, exist_ok=True).schema == SCHEMA
    with pytest.raises(SchemaError, match="another schema"):
        create(tmp_path / "a.well", {"x": Array()}, exist_ok=True)


def test_sizes_may_be_given_as_people_write_them(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA, segment_bytes="2 kB")
    assert store.record.segment_bytes == 2000
    with store.writer(queue_bytes="1 MiB") as out:
        out.append(step())
    with pytest.raises(StepwellError, match=r"queue_bytes='much'.*at least 0, or a size"):
        store.writer(queue_bytes="much")


@pytest.mark.parametrize(
    "wrong",
    [{"fps": 0}, {"fps": float("inf")}, {"segment_bytes": "0 B"}, {"sync": "always"}, {"metadata": {"a": object()}}],
)
def test_settings_that_no_store_can_have_are_refused_and_leave_nothing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=next(iter(wrong))):
        create(tmp_path / "a.well", SCHEMA, **wrong)
    assert not (tmp_path / "a.well").exists()


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_what_is_no_mapping_is_refused_by_every_way_in(tmp_path: Path, schema: Any) -> None:
    with create(tmp_path / "a.well", schema).writer() as out:
        for write in (out.append, out.append_batch, out.add_episode):
            with pytest.raises(StepError, match=r"got a list\. Give a mapping"):
                write([1, 2])
        if schema is not None:
            out.append(step())
            for write in (out.append, out.append_batch):
                with pytest.raises(StepError, match=r"got a list\. Give a mapping"):
                    write([1, 2])


def test_keywords_beside_a_mapping_are_refused_and_not_lost(tmp_path: Path) -> None:
    with create(tmp_path / "a.well", SCHEMA).writer() as out:
        for _ in range(2):
            with pytest.raises(StepError, match="'terminated' beside it"):
                out.append(step(), terminated=True)
            out.append(step())


@pytest.mark.parametrize("key", [slice(1, 3), "action", None])
def test_the_key_of_a_store_is_an_episode_s_number(tmp_path: Path, key: Any) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(TypeError, match="an episode's number"):
        store[key]


def test_a_store_opened_for_reading_refuses_a_writer(tmp_path: Path) -> None:
    create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(ReadOnlyError, match='mode="r"'):
        open(tmp_path / "a.well", mode="r").writer()


def test_raw_features_open_with_numpy(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        out.append_batch({"observation": np.ones((5000, 3), np.float32), "action": np.arange(5000, dtype=np.int32)})
        out.end_episode()
    store.refresh()
    action = np.load(store.segments[0].path / "action.npy", mmap_mode="r")
    assert action.dtype == np.int32
    assert action.tolist() == list(range(5000))
    assert np.load(store.segments[0].path / "episodes.npy")["length"].tolist() == [5000]


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        (Array((), "U3"), np.str_("long text")),
        (Array((), "S3"), np.bytes_(b"long text")),
        (Array((), "M8[D]"), np.datetime64("2020-01-01T12:30", "s")),
        (Array((), [("a", "i4"), ("b", "f4")]), np.zeros((), [("x", "f8"), ("y", "i8")])[()]),
        (Array((), "float32"), 1e300),
        (Array(2, "float16"), [1e6, 0.0]),
        (Array((), "float64"), 10**400),
        (Text(), "a lone surrogate: \ud800"),
    ],
)
def test_a_value_that_its_feature_would_cut_is_refused_by_name(tmp_path: Path, feature: Feature, value: Any) -> None:
    store = create(tmp_path / "a.well", {"some.name": feature})
    with store.writer() as out, pytest.raises(StepError, match=r"some\.name"):
        out.append({"some.name": value})
    assert store.num_steps == 0


def test_short_strings_fit_a_feature_of_longer_ones(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"word": Array((), "U5"), "words": Array(2, "U5")})
    with store.writer() as out:
        out.append(word="abc", words=["a", "bcdef"])
        out.end_episode()
    assert store[0]["word"].tolist() == ["abc"]
    assert store[0]["words"].tolist() == [["a", "bcdef"]]


@pytest.mark.parametrize("column", [{1, 2}, np.array(3), 3])
def test_what_is_no_column_is_refused_by_name(tmp_path: Path, column: Any) -> None:
    with create(tmp_path / "a.well").writer() as out, pytest.raises(StepError, match="'t' is not a column"):
        out.add_episode({"t": column})


def test_metadata_too_deep_for_json_is_refused_and_the_episode_stays_open(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"inner": deep}
    with store.writer() as out:
        out.append(step())
        with pytest.raises(StepError, match="deep"):
            out.end_episode(deep=deep)
        out.end_episode()
    assert len(store) == 1


def test_little_room_is_made_for_rows_that_are_large(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"volume": Array(20 << 20, "uint8")})
    with store.writer() as out:
        out.append(volume=np.zeros(20 << 20, np.uint8))
        assert next(tmp_path.rglob("volume.npy")).stat().st_size < 70 << 20
        out.discard_episode()


def test_processes_that_create_one_store_at_once_get_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.well"
    others: list[Store] = []
    real = Path.mkdir

    def made_by_somebody_else(self: Path, **options: Any) -> None:
        monkeypatch.setattr(Path, "mkdir", real)
        real(self, **options)
        others.append(create(path))
        with others[0].writer() as out:
            out.add_episode({"t": [1, 2]})

    monkeypatch.setattr(Path, "mkdir", made_by_somebody_else)
    store = create(path, exist_ok=True)
    assert (store.uuid, len(store)) == (others[0].uuid, 1)


def test_what_a_killed_create_left_is_no_store_and_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / "a.well" / "segments").mkdir(parents=True)
    assert len(create(tmp_path / "a.well")) == 0


def test_a_record_replaced_within_one_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    created = create(path)
    later = time.time_ns() + 10**9
    os.utime(path / "store.json", ns=(later, later))
    follower = open(path, mode="r")
    with created.writer() as out:
        out.add_episode({"t": [1, 2]})
    os.utime(path / "store.json", ns=(later, later))
    assert follower.refresh()
    assert len(follower) == 1


def test_asking_an_episode_for_a_name_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create(tmp_path / "a.well")
    with store.writer() as out:
        out.add_episode({"t": [1, 2]})
    monkeypatch.setattr(type(store.segments[0]), "read_rows", None)
    assert "t" in store[0]
    assert "u" not in store[0]


def test_what_cannot_be_made_an_array_is_refused_by_name(tmp_path: Path) -> None:
    class OnAnotherDevice:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("copy it to the host first")

    out = create(tmp_path / "a.well", SCHEMA).writer()
    with pytest.raises(StepError, match=r"'observation'.*copy it to the host first"):
        out.append({**step(), "observation": OnAnotherDevice()})


def test_a_first_append_that_was_interrupted_can_be_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, feature: Feature) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with create(tmp_path / "a.well", SCHEMA).writer() as out:
        monkeypatch.setattr("stepwell.store.writer.acceptor", interrupted)
        with pytest.raises(KeyboardInterrupt):
            out.append(step(1))
        out.append(step(2))
        out.end_episode()
    assert open(tmp_path / "a.well")[0]["observation"].tolist() == [[2.0] * 3]


def test_a_writer_cannot_be_sent_to_another_process_and_says_what_can(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well")
    with store.writer() as writer, pytest.raises(WriterClosedError, match="Send the store"):
        pickle.dumps(writer)


def test_an_episode_that_was_pickled_is_found_where_it_is_now(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA, segment_bytes=1)
    with store.writer() as out:
        for number in range(4):
            out.append(step(number))
            out.end_episode(number=number)
    pickled = [pickle.dumps(episode) for episode in store]
    assert pickle.loads(pickled[3]).index == 3
    store.delete_episodes([1])
    store.compact()
    found = pickle.loads(pickled[3])
    assert (found.index, found.metadata, found["observation"].tolist()) == (2, {"number": 3}, [[3.0] * 3])
    with pytest.raises(EpisodeNotFoundError, match=r"episode 1, .*a\.well"):
        pickle.loads(pickled[1])


def test_values_of_other_kinds_are_refused_with_what_to_give(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"image": Image((4, 4, 3)), "film": Video((16, 16, 3)), "x": Array(final=True)})
    film, x = np.zeros((2, 16, 16, 3), np.uint8), np.zeros(3, np.float32)
    with store.writer() as writer:
        with pytest.raises(StepError, match=r"feature 'film': got a str. Give stepwell\.VideoFile\('a\.mp4'\)"):
            writer.add_episode({"image": film[:, :4, :4], "film": "a.mp4", "x": x})
        with pytest.raises(StepError, match=r"\(value \* 255\)\.astype\('uint8'\)"):
            writer.add_episode({"image": np.ones((2, 4, 4, 3)) / 2, "film": film, "x": x})
        with pytest.raises(StepError, match=r"value\.astype\('uint8'\)"):
            writer.add_episode({"image": np.ones((2, 4, 4, 3)) * 200, "film": film, "x": x})
        writer.append(image=film[0, :4, :4], film=film[0], x=0.0)
        with pytest.raises(StepError, match=r"final lacks 'x' and final has 'y'\. It needs .*: 'x'\. Declare others"):
            writer.end_episode(final={"y": 3})
        writer.end_episode()
