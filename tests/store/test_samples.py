"""Features with a rate of their own, as they are recorded, copied and read whole."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell import Array, Image, Samples, SchemaError, StepError
from stepwell.errors import CorruptSegmentError, LeftOutWarning
from tests.helpers.rated import Recorded, make, record, schema_of

FPS, RATE = 10.0, 40.0


def episode_of(length: int, number: int = 0, *, has_final: bool = True) -> Recorded:
    times = np.sort(np.random.default_rng(number).uniform(0, length / FPS, int(length * RATE / FPS)))
    values = np.stack([number * 1000 + np.arange(len(times)), times], axis=1).astype(np.float32)
    return Recorded(length, values, times, has_final)


RECORDED = [episode_of(9), episode_of(1, 1, has_final=False), episode_of(14, 2), episode_of(5, 3, has_final=False)]


def assert_same(store: stepwell.Store, wanted: list[Recorded]) -> None:
    assert store.num_episodes == len(wanted)
    for episode, each in zip(store, wanted, strict=True):
        samples = episode["tactile"]
        assert np.array_equal(samples.values, each.values)
        assert np.array_equal(samples.times, each.times)
        assert np.array_equal(episode["tactile_time"], each.times)
        assert samples.values.dtype == np.float32


@pytest.fixture(params=["raw", "zstd"])
def store(tmp_path, request):
    return make(f"{tmp_path}/a.well", RECORDED, FPS, RATE, codec=request.param)


def test_a_feature_with_a_rate_prints_and_comes_back_from_json():
    feature = Array((3,), "float32", rate=150)
    assert repr(feature) == "Array(3, rate=150)"
    assert eval(repr(feature)) == feature
    assert stepwell.Feature.from_json(feature.to_json()) == feature
    schema = stepwell.Schema({"x": feature, "y": Array(2)})
    assert list(schema) == ["x", "x_time", "y"]
    assert schema.rated == {"x": "x_time"}
    assert stepwell.Schema.from_json(schema.to_json()) == schema == stepwell.Schema(schema)


@pytest.mark.parametrize("make_feature", [
    lambda: Array(3, rate=0), lambda: Array(3, rate=float("nan")), lambda: Array(3, rate=True),
    lambda: Array((None, 3), rate=10), lambda: Array(3, rate=10, codec="delta"), lambda: Array(3, rate=10, final=True),
    lambda: stepwell.Schema({"x": Array(3, rate=10), "x_time": Array(3)}), lambda: Array(3, rate="fast"),
    lambda: Image((8, 8, 3), codec="video", rate=10), lambda: stepwell.Video((8, 8, 3), rate=10),
    lambda: Image((None, None, 3), codec="jpeg", rate=10), lambda: Image((8, 8, 3), codec="jpeg", rate=10, final=True),
    lambda: Array(3, rate=10, codec="jpeg"), lambda: stepwell.Text(rate=10),
    lambda: Array(3, rate=10, codec="file-span", reference="x"),
])  # fmt: skip
def test_a_rate_that_cannot_be_is_refused(tmp_path, make_feature):
    with pytest.raises(SchemaError):
        stepwell.create(tmp_path / "a.well", {"x": make_feature()}, fps=10)


def test_a_rate_needs_the_clock_of_the_steps(tmp_path):
    with pytest.raises(SchemaError, match="Give fps"):
        stepwell.create(tmp_path / "a.well", {"x": Array(3, rate=10)})


@pytest.mark.parametrize("way", ["append", "batch", "whole"])
def test_samples_are_there_once_however_they_were_recorded(tmp_path, way):
    recorded = RECORDED if way != "whole" else [each for each in RECORDED if each.length > 1]
    store = make(f"{tmp_path}/a.well", recorded, FPS, RATE, way)
    assert_same(store, recorded)
    assert_same(stepwell.open(store.path, mode="r"), recorded)
    num_samples = sum(len(each.times) for each in recorded)
    assert sum(path.stat().st_size for path in store.path.rglob("tactile.bin")) == 8 * num_samples
    assert store.verify(deep=True).is_ok


def test_what_an_episode_gives_can_be_added(store, tmp_path):
    other = stepwell.create(tmp_path / "b.well", store.schema, fps=FPS)
    with other.writer() as writer:
        for episode in store:
            writer.add_episode(dict(episode))
    assert_same(other, RECORDED)
    assert_same(pickle.loads(pickle.dumps(other)), RECORDED)


def test_copies_of_all_kinds_keep_samples(store, tmp_path):
    store.checkpoint(tmp_path / "c.well")
    assert_same(stepwell.open(tmp_path / "c.well"), RECORDED)
    stepwell.concatenate(tmp_path / "d.well", [store, store])
    assert_same(stepwell.open(tmp_path / "d.well"), RECORDED * 2)
    copy = stepwell.open(tmp_path / "c.well")
    copy.delete_episodes([0, 2])
    copy.compact()
    assert_same(stepwell.open(tmp_path / "c.well"), [RECORDED[1], RECORDED[3]])


@pytest.mark.parametrize("workers", [1, 2])
def test_conversion_keeps_samples(tmp_path, workers):
    schema = {"image": Image((16, 16, 3), final=True), "tactile": Array(2, rate=RATE)}
    store = stepwell.create(tmp_path / "a.well", schema, fps=FPS)
    with store.writer() as writer:
        for each in RECORDED:
            images = np.zeros((each.length + each.has_final, 16, 16, 3), np.uint8)
            writer.add_episode({"image": images, "tactile": Samples(each.values, each.times)})
    stepwell.convert(store, tmp_path / "b.well", {"image": "png"}, workers=workers)
    found = stepwell.open(tmp_path / "b.well")
    assert_same(found, RECORDED)
    assert found.schema["tactile"] == store.schema["tactile"]
    for number, (codec, other) in enumerate([("zstd", "lz4"), ("lz4", "raw")]):
        stepwell.convert(found, tmp_path / f"{number}.well", {"tactile": codec}, workers=workers)
        assert_same(stepwell.open(tmp_path / f"{number}.well"), RECORDED)
        stepwell.convert(tmp_path / f"{number}.well", tmp_path / f"{number}b.well", {"tactile": other})
        found = stepwell.open(tmp_path / f"{number}b.well")
        assert_same(found, RECORDED)
        assert found.schema["tactile"] == Array(2, rate=RATE, codec=other)
    with pytest.raises(SchemaError, match="those before them"):
        stepwell.convert(store, tmp_path / "c.well", {"tactile": "delta"})


def test_several_samples_at_a_time_follow_the_first_at_the_rate(tmp_path):
    store = stepwell.create(
        tmp_path / "a.well", {"t": Array((), "int64"), "audio": Array((), "int16", rate=8000)}, fps=10
    )
    with store.writer() as writer:
        for step in range(5):
            start = max(0, 800 * step - 799)
            writer.append_at("audio", np.arange(start, 800 * step + 1, dtype=np.int16), start / 8000)
            writer.append(t=step)
        writer.end_episode()
    samples = store[0]["audio"]
    assert samples.values.tolist() == list(range(3201))
    np.testing.assert_allclose(samples.times, np.arange(3201) / 8000, rtol=1e-12)


def test_arrays_may_be_used_again_after_append_at(tmp_path):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE, final=False), fps=FPS)
    value, times = np.zeros((2, 2), np.float32), np.array([0.01, 0.02])
    with store.writer() as writer:
        writer.append(step=0, action=0)
        writer.append_at("tactile", value, times)
        value[:], times[:] = 7, 9
        writer.append(step=1, action=1)
    assert store[0]["tactile"].values.tolist() == [[0, 0], [0, 0]]
    assert store[0]["tactile"].times.tolist() == [0.01, 0.02]


@pytest.mark.parametrize(("name", "value", "time", "message"), [
    ("tactile", [1.0, 2.0], -0.1, "0 or more"),
    ("tactile", [1.0, 2.0], float("nan"), "0 or more"),
    ("tactile", [1.0, 2.0], 0.1, "not after the last step, of 0.2 s"),
    ("tactile", [1.0, 2.0], 0.2, "not after the last step"),
    ("tactile", [1.0, 2.0], 0.25, "not after the sample before, of 0.25 s"),
    ("tactile", np.zeros((2, 2), np.float32), [0.3, 0.27], "not after the one before"),
    ("tactile", np.zeros((2, 2), np.float32), [0.3], "times of shape"),
    ("tactile", [1.0, 2.0, 3.0], 0.3, "shape"),
    ("tactile", 1.0, 0.3, "shape"),
    ("tactile", np.zeros(2), 0.3, "float64"),
    ("tactile", [1.0, 2.0], "now", "no number"),
    ("step", 1, 0.3, "has no rate"),
    ("other", 1, 0.3, "has no rate"),
])  # fmt: skip
def test_samples_that_cannot_be_are_refused_and_the_writer_goes_on(tmp_path, name, value, time, message):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    with store.writer() as writer:
        for step in range(3):
            writer.append(step=step, action=step)
        writer.append_at("tactile", [5.0, 5.0], 0.25)
        with pytest.raises(StepError, match=message):
            writer.append_at(name, value, time)
        writer.append(step=3, action=3)
        writer.end_episode()
    assert store[0]["tactile"].times.tolist() == [0.25]


def test_samples_after_the_end_are_refused_and_the_episode_stays_open(tmp_path):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    with store.writer() as writer:
        writer.append(step=0, action=0)
        writer.append_at("tactile", [1.0, 1.0], 1.7e9)
        with pytest.raises(StepError, match="after the episode's end"):
            writer.end_episode()
        with pytest.raises(StepError, match="an episode is open"):
            writer.add_episode({"step": [0], "action": [0], "tactile": Samples(np.zeros((0, 2), np.float32))})
        writer.discard_episode()
        with pytest.raises(StepError, match="after the episode's end"):
            writer.add_episode({"step": [0], "action": [0], "tactile": Samples(np.zeros((9, 2), np.float32))})
        record(writer, RECORDED[0], FPS)
    assert_same(store, RECORDED[:1])


def test_what_waits_when_a_writer_is_closed_is_kept_or_named(tmp_path):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    with store.writer() as writer:
        writer.append(step=0, action=0)
        writer.append_at("tactile", [1.0, 1.0], 0.05)
    assert store[0]["tactile"].times.tolist() == [0.05]
    assert store[0].interrupted
    writer = store.writer()
    writer.append(step=0, action=0)
    writer.append_at("tactile", np.zeros((2, 2), np.float32), [0.05, 0.5])
    with pytest.warns(LeftOutWarning, match="'tactile'"):
        writer.close()
    assert store[1]["tactile"].times.tolist() == [0.05]


def test_an_end_that_failed_and_is_tried_again_stores_samples_once(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    with store.writer() as writer:
        writer.append(step=0, action=0)
        writer.append_at("tactile", [1.0, 1.0], 0.05)
        with monkeypatch.context() as patch:
            patch.setattr(type(writer._segment), "end_episode", lambda self, **options: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                writer.end_episode()
        writer.append_at("tactile", [2.0, 2.0], 0.07)
        writer.end_episode()
    assert store[0]["tactile"].times.tolist() == [0.05, 0.07]


def add_rows(writer, counts, time_counts, times=None):
    """Add an episode whose samples come as rows of its steps."""
    times = np.arange(sum(time_counts)) / RATE if times is None else np.array(times)
    rows = [np.zeros((count, 2), np.float32) for count in counts]
    steps = list(range(len(counts)))
    at = np.split(times, np.cumsum(time_counts)[:-1])
    writer.add_episode({"step": steps, "action": steps, "tactile": rows, "tactile_time": at})


def test_samples_come_as_rows_of_steps(tmp_path):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    with store.writer() as writer:
        add_rows(writer, [1, 2, 0], [1, 2, 0], [0.0, 0.02, 0.07])
    assert store[0]["tactile"].times.tolist() == [0.0, 0.02, 0.07]


@pytest.mark.parametrize(("call", "message"), [
    (lambda writer: writer.append(step=0, action=0, tactile=[0.0, 0.0]), "append_at"),
    (lambda writer: writer.append(step=0), "'action' is missing"),
    (lambda writer: writer.append_batch({"step": [0], "action": [0], "tactile": [[0.0, 0.0]]}), "append_at"),
    (lambda writer: writer.add_episode({"step": [0], "action": [0]}), "'tactile' is missing"),
    (lambda writer: writer.add_episode({"step": [0], "action": [0], "tactile": [[0.0, 0.0]]}), "Samples"),
    (lambda writer: add_rows(writer, [2, 1], [2, 0]), "not as many"),
    (lambda writer: add_rows(writer, [2, 1], [2, 1], [0.0, 0.0, 0.1]), "is not after the one before"),
    (lambda writer: add_rows(writer, [2, 1], [2, 1], [0.0, np.nan, 0.1]), "Allowed: 0 or more"),
    (lambda writer: writer.add_episode({"step": 3, "action": [0], "tactile": Samples(np.zeros((0, 2)))}), "got a int"),
    (lambda writer: writer.add_one_step_episodes({"step": [0], "action": [0]}), "has a rate"),
    (lambda writer: writer.end_episode(), "no steps"),
])  # fmt: skip
def test_steps_and_episodes_say_how_samples_are_given(tmp_path, call, message):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    with store.writer() as writer, pytest.raises(StepError, match=message):
        call(writer)


def test_writers_of_a_value_a_step_refuse_rates(store, tmp_path):
    with pytest.raises(StepError, match="vector writer"):
        store.vector_writer(2).append({"step": np.zeros(2, np.int64), "action": np.zeros(2, np.int64)})
    with pytest.raises(SchemaError, match="has a rate"):
        store.add_column("other", Array(2, rate=4), lambda episode: None)
    with pytest.raises(StepError, match="no feature of the store has a rate"):
        stepwell.create(tmp_path / "b.well", {"x": Array()}).writer().append_at("x", 1.0, 0.0)
    with pytest.raises(StepError, match="no schema yet"):
        stepwell.create(tmp_path / "c.well").writer().append_at("x", 1.0, 0.0)


def killed(store: stepwell.Store, code: str) -> None:
    """Run statements with ``writer`` in another process, which is killed then."""
    head = "import os, signal, stepwell, numpy as np\n"
    ending = "\nos.kill(os.getpid(), signal.SIGKILL)"
    code = f"{head}writer = stepwell.open({str(store.path)!r}).writer()\n{code}{ending}"
    warm_children.run([sys.executable, "-c", code], timeout=60)


def test_a_killed_writer_loses_what_waited_for_its_step_only(tmp_path):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE), fps=FPS)
    code = """
for step in range(4):
    writer.append_at("tactile", [float(step), 0.0], step / 10)
    writer.append(step=step, action=step)
writer.append_at("tactile", [9.0, 9.0], 0.35)
"""
    killed(store, code)
    store = stepwell.open(store.path)
    assert store[0].interrupted
    assert store[0]["tactile"].values[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize(("column", "values"), [
    ("tactile", "np.array([[1.0, 1.0]], np.float32)"), ("tactile_time", "np.array([0.05])"),
])  # fmt: skip
def test_a_kill_between_samples_and_their_times_leaves_both_or_none(tmp_path, column, values, codec):
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE, codec=codec), fps=FPS)
    code = f"""
writer.append_at("tactile", [0.0, 0.0], 0.0)
writer.append(step=0, action=0)
writer._segment.extend_last({{{column!r}: {values}}})
"""
    killed(store, code)
    assert len(stepwell.open(store.path, mode="r")[0]["tactile"]) == 1
    store = stepwell.open(store.path)
    assert store[0]["tactile"].times.tolist() == [0.0]
    assert store.verify(deep=True).is_ok
    with store.writer() as writer:
        record(writer, RECORDED[0], FPS)
    assert_same(store, [Recorded(1, np.zeros((1, 2), np.float32), np.zeros(1), False), RECORDED[0]])


def test_samples_without_times_are_found_by_whoever_reads_them(store):
    segment = next(store.path.glob("segments/*/tactile_time.npy"))
    data = bytearray(segment.read_bytes())
    # of the last row that has any
    edges = np.frombuffer(data, "<u8", offset=len(data) - 8 * (sum(e.length + e.has_final for e in RECORDED) + 1))
    last = len(data) - 8 * int(np.count_nonzero(edges == edges[-1]))
    for place in range(last, len(data), 8):
        data[place : place + 8] = (int(edges[-1]) - 8).to_bytes(8, "little")
    segment.write_bytes(data)
    with pytest.raises(CorruptSegmentError, match="samples as times"):
        stepwell.open(store.path, mode="r")[-1]["tactile"]
    assert not stepwell.open(store.path, mode="r").verify(deep=True).is_ok
