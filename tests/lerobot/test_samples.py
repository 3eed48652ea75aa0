"""Features with a rate in LeRobot's datasets: out and back again, every sample once."""

from __future__ import annotations

import json

import numpy as np
import pytest

import stepwell
from stepwell.errors import SchemaError, StepwellError
from stepwell.lerobot import edits, write_dataset
from tests.helpers.rated import Recorded, make

pytest.importorskip("pyarrow")

FPS, RATE = 10.0, 47.0


def episode_of(length: int, number: int) -> Recorded:
    times = np.sort(np.random.default_rng(number).uniform(0, length / FPS, int(length * RATE / FPS)))
    values = np.stack([number * 1000 + np.arange(len(times)), times], axis=1).astype(np.float32)
    return Recorded(length, values, times, number % 2 == 0)


RECORDED = [episode_of(length, number) for number, length in enumerate([9, 4, 14])]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make(f"{tmp_path_factory.mktemp('rated')}/a.well", RECORDED, FPS, RATE)


def assert_same(store: stepwell.Store, wanted: list[Recorded], name: str = "tactile") -> None:
    assert store.num_episodes == len(wanted)
    for episode, each in zip(store, wanted, strict=True):
        assert np.array_equal(episode[name].values, each.values)
        assert np.array_equal(episode[name].times, each.times)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_samples_go_out_and_come_back(store, tmp_path, version):
    written = write_dataset(store, tmp_path / "set", task="touch", version=version)
    about = written.info.features["tactile"]
    assert about.raw["info"] == {"rate": RATE}
    room = about.shape[0]
    assert written.info.features["tactile_time"].shape == (room,)
    stepwell.convert(str(tmp_path / "set"), tmp_path / "b.well", workers=1)
    back = stepwell.open(tmp_path / "b.well")
    assert back.schema["tactile"] == store.schema["tactile"]
    assert_same(back, RECORDED)


def test_frames_hold_the_samples_since_the_frame_before(store, tmp_path):
    write_dataset(store, tmp_path / "set", task="touch")
    found = stepwell.open(f"lerobot://{tmp_path}/set")
    for episode, each in zip(found, RECORDED, strict=True):
        times, values = episode["tactile_time"], episode["tactile"]
        assert values.shape == (*times.shape, 2)
        for frame in range(each.length):
            last = np.inf if frame == each.length - 1 else frame / FPS
            inside = (each.times > (frame - 1) / FPS) & (each.times <= last)
            count = int(inside.sum())
            assert np.array_equal(times[frame, :count], each.times[inside])
            assert np.array_equal(values[frame, :count], each.values[inside])
            assert (times[frame, count:] == -1).all()
            assert not values[frame, count:].any()


def test_a_dataset_with_rates_is_appended_to_where_it_has_room(store, tmp_path):
    write_dataset(store, tmp_path / "set", task="touch", rename={"tactile": "touch"})
    write_dataset(store, tmp_path / "set", task="touch", rename={"tactile": "touch"}, append=True)
    few = make(f"{tmp_path}/few.well", [Recorded(3, np.ones((1, 2), np.float32), np.array([0.1]), False)], FPS, RATE)
    write_dataset(few, tmp_path / "set", task="touch", rename={"tactile": "touch"}, append=True)
    stepwell.convert(str(tmp_path / "set"), tmp_path / "b.well", workers=1)
    back = stepwell.open(tmp_path / "b.well")
    assert_same(back, [*RECORDED, *RECORDED, Recorded(3, np.ones((1, 2)), np.array([0.1]), False)], "touch")
    many = np.arange(40) / 400
    crowd = make(f"{tmp_path}/many.well", [Recorded(2, np.ones((40, 2), np.float32), many, False)], FPS, RATE)
    with pytest.raises(SchemaError, match="to be appended"):
        write_dataset(crowd, tmp_path / "set", task="touch", rename={"tactile": "touch"}, append=True)


def test_samples_of_another_rate_are_not_put_to_those_of_a_dataset(store, tmp_path):
    write_dataset(store, tmp_path / "set", task="touch")
    before = {path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()}
    slow = make(f"{tmp_path}/slow.well", RECORDED, FPS, RATE / 2)
    with pytest.raises(SchemaError, match=r"at 47 Hz, and what is to be appended has them at 23\.5 Hz"):
        write_dataset(slow, tmp_path / "set", task="touch", append=True)
    assert before == {path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()}
    write_dataset(slow, tmp_path / "slow", task="touch")
    with pytest.raises(SchemaError, match=r"slow has them at 23\.5 Hz"):
        edits.merge([tmp_path / "set", tmp_path / "slow"], tmp_path / "both")
    edits.merge([tmp_path / "set", tmp_path / "set"], tmp_path / "both")
    stepwell.convert(str(tmp_path / "both"), tmp_path / "b.well", workers=1)
    assert_same(stepwell.open(tmp_path / "b.well"), RECORDED * 2)


def test_another_clock_is_refused(store, tmp_path):
    with pytest.raises(SchemaError, match="features with a rate"):
        write_dataset(store, tmp_path / "set", task="touch", fps=30)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("rate", ["fast", -1, 0, True, None, 1e12])
def test_a_rate_of_strangers_that_is_none_leaves_frames_as_they_are(store, tmp_path, rate):
    write_dataset(store, tmp_path / "set", task="touch")
    path = tmp_path / "set" / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["tactile"]["info"] = {"rate": rate}
    path.write_text(json.dumps(info))
    stepwell.convert(str(tmp_path / "set"), tmp_path / "b.well", workers=1)
    assert stepwell.open(tmp_path / "b.well").schema["tactile"].rate is None


def test_times_of_strangers_that_do_not_ascend_are_refused(store, tmp_path):
    other = stepwell.create(tmp_path / "x.well", {
        "tactile": stepwell.Array((3, 2)), "tactile_time": stepwell.Array(3, "float64"), "step": stepwell.Array(),
    }, fps=FPS)  # fmt: skip
    with other.writer() as writer:
        times = np.array([[0.0, -1, -1], [0.1, 0.05, -1]])
        writer.add_episode({"tactile": np.zeros((2, 3, 2), np.float32), "tactile_time": times, "step": [0.0, 1.0]})
    write_dataset(other, tmp_path / "set", task="touch")
    path = tmp_path / "set" / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["tactile"]["info"] = {"rate": 30.0}
    path.write_text(json.dumps(info))
    with pytest.raises(StepwellError, match="do not ascend"):
        stepwell.convert(str(tmp_path / "set"), tmp_path / "b.well", workers=1)
