"""Shards: episodes in order, none lost, about as large as each other; by one process or several the same bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import StepwellError, WorkerError
from stepwell.formats.source_episodes import as_view
from stepwell.testing import tiny_store
from stepwell.tfds.episode_examples import EpisodeExamples, StepExamples
from stepwell.tfds.record_files import TFRecordFile
from stepwell.tfds.step_forms import step_columns
from stepwell.tfds.writing import Shard, ShardJob, cut_shards, mean_row_bytes, write_shards


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.data())
def test_shards_cover_all_episodes_once_in_order_and_none_is_empty(rows, data):
    number = data.draw(st.integers(1, len(rows)))
    cuts = cut_shards(rows, number)
    assert len(cuts) == number
    assert [episode for start, stop in cuts for episode in range(start, stop)] == list(range(len(rows)))
    assert all(start < stop for start, stop in cuts)


def test_shards_of_equal_episodes_are_alike():
    sizes = [stop - start for start, stop in cut_shards([7] * 103, 10)]
    assert max(sizes) - min(sizes) <= 1


@pytest.fixture
def job(tmp_path):
    store = tiny_store(tmp_path / "tiny.well", (5, 3, 8, 1, 2, 9, 4))
    columns = step_columns(store.schema, features=["action", "observation.state"])
    return ShardJob({"train": as_view(store)}, EpisodeExamples(columns), "tfrecord")


def shards_of(job, folder, number):
    folder.mkdir()
    rows = [episode.length for episode in job.episodes("train")]
    return [
        Shard(str(folder / f"{i}"), "train", start, stop) for i, (start, stop) in enumerate(cut_shards(rows, number))
    ]


def test_records_are_counted_and_stand_in_the_files_in_order(job, tmp_path):
    shards = shards_of(job, tmp_path / "out", 3)
    found = write_shards(job, shards, 1, False)
    records = []
    for shard in shards:
        read = TFRecordFile(shard.path).read(0, found[shard.path].num_records)
        records += [read.data[start:stop].tobytes() for start, stop in zip(read.starts, read.stops, strict=True)]
    expected = [record for episode in job.episodes("train") for record in job.examples.encode(episode)]
    assert records == expected
    assert sum(result.num_bytes for result in found.values()) == sum(map(len, expected))


def test_several_processes_write_the_same_bytes(job, tmp_path):
    one, two = shards_of(job, tmp_path / "one", 3), shards_of(job, tmp_path / "two", 3)
    write_shards(job, one, 1, False)
    write_shards(job, two, 2, False)
    for here, there in zip(one, two, strict=True):
        assert Path(here.path).read_bytes() == Path(there.path).read_bytes()


def test_a_failure_in_another_process_names_the_episode(job, tmp_path):
    shards = shards_of(job, tmp_path / "out", 2)
    missing = [Shard(str(tmp_path / "none" / "0"), "train", shard.start, shard.stop) for shard in shards]
    with pytest.raises(WorkerError, match="FileNotFoundError"):
        write_shards(job, missing, 2, False)


def test_a_negative_number_of_workers_is_refused(job):
    with pytest.raises(StepwellError, match=r"workers=-1: allowed is 0 and more"):
        write_shards(job, [], -1, False)


def test_the_size_of_a_row_is_estimated_from_some_episodes(job):
    sizes = [sum(map(len, job.examples.encode(episode))) for episode in job.episodes("train")]
    rows = sum(episode.length for episode in job.episodes("train"))
    assert mean_row_bytes(job, "train") == pytest.approx(sum(sizes) / rows, rel=0.5)
    steps = ShardJob(job.views, StepExamples(job.examples.columns), "tfrecord")
    assert mean_row_bytes(steps, "train") == len(next(steps.examples.encode(job.episodes("train")[0])))
