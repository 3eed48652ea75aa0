"""StreamingLeRobotDataset: each item once an epoch, by ranks and workers, in LeRobot's order, and equal items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

import numpy as np
import torch
from torch.utils.data import DataLoader

from stepwell.errors import DatasetNotFoundError
from stepwell.lerobot import LeRobotDataset, StreamingLeRobotDataset
from stepwell.lerobot.streaming import FILES_AHEAD, chunks_of_fetched
from stepwell.testing import HubServer, tiny_lerobot

LENGTHS = [7, 5, 6, 4, 8]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cameras = {"observation.images.top": ("png", (8, 8))}
    return tiny_lerobot(tmp_path_factory.mktemp("set") / "tiny", cameras=cameras, lengths=LENGTHS, files=3)


def numbers(stream: Any) -> list[int]:
    return [int(item["index"]) for item in stream]


def lerobots_order(shards: list[range], buffer_size: int, rng: np.random.Generator) -> Iterator[int]:
    """As lerobot 0.6.2 walks shards: a list of items is the buffer, drawn from 100 places at a time."""
    walks = {place: list(shard) for place, shard in enumerate(shards)}
    drawn: list[int] = []
    buffer: list[int] = []
    while walks:
        key = rng.choice(list(walks))
        if not walks[key]:
            del walks[key]
            continue
        row = walks[key].pop(0)
        if len(buffer) < buffer_size:
            buffer.append(row)
            continue
        if not drawn:
            drawn = [int(place) for place in rng.integers(0, buffer_size, size=100)]
        place = drawn.pop(0)
        yield buffer[place]
        buffer[place] = row
    rng.shuffle(buffer)
    yield from buffer


@pytest.mark.parametrize("buffer_size", [1, 4, 1000])
@pytest.mark.parametrize("max_num_shards", [1, 2, 16])
def test_the_first_epoch_is_in_lerobots_order(root: Path, buffer_size: int, max_num_shards: int) -> None:
    stream = StreamingLeRobotDataset("me/tiny", root, buffer_size=buffer_size, max_num_shards=max_num_shards, seed=5)
    rows = stream.meta.episodes
    files = np.array(rows["data/file_index"])
    runs = np.array_split(np.unique(files), min(max_num_shards, 3))
    stops = [rows["dataset_to_index"][int(np.flatnonzero(files == run[-1])[-1])] for run in runs]
    shards = [*map(range, [0, *stops], stops)]
    assert stream.num_shards == len(shards)
    assert numbers(stream) == [*lerobots_order(shards, buffer_size, np.random.default_rng(5))]
    second = numbers(stream)
    assert sorted(second) == list(range(sum(LENGTHS)))
    stream.set_epoch(1)
    assert numbers(stream) == second


def test_without_shuffle_epochs_are_alike_and_with_it_they_differ(root: Path) -> None:
    for shuffle in (False, True):
        stream = StreamingLeRobotDataset("me/tiny", root, buffer_size=5, shuffle=shuffle)
        assert (numbers(stream) == numbers(stream)) is not shuffle


def test_items_are_those_of_the_dataset(root: Path) -> None:
    deltas = {"observation.images.top": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}
    stream = StreamingLeRobotDataset("me/tiny", root, episodes=[3, 1], delta_timestamps=deltas)
    dataset = LeRobotDataset("me/tiny", root, episodes=[3, 1], delta_timestamps=deltas)
    place = dataset.absolute_to_relative_idx
    seen = 0
    for item in stream:
        other = dataset[place[int(item["index"])]]
        assert list(item) == list(other)
        for key, value in item.items():
            assert value == other[key] if isinstance(value, str) else torch.equal(value, other[key])
        seen += 1
    assert seen == stream.num_frames == LENGTHS[1] + LENGTHS[3]
    assert (stream.repo_id, stream.root, stream.fps) == (dataset.repo_id, root, dataset.fps)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_have_each_item_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, world: int, workers: int
) -> None:
    found = []
    for rank in range(world):
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda: world)
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        stream = StreamingLeRobotDataset("me/tiny", root, buffer_size=8)
        loader = DataLoader(
            stream, batch_size=3, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        mine = [int(index) for batch in loader for index in batch["index"]]
        assert abs(len(mine) - sum(LENGTHS) / world) < 1
        found += mine
    assert sorted(found) == list(range(sum(LENGTHS)))


def test_a_store_is_a_stream_too(root: Path) -> None:
    from stepwell.lerobot import open_in_place
    from stepwell.windows import View

    view = View(open_in_place(root), [0, 2])
    assert sorted(numbers(StreamingLeRobotDataset(view, buffer_size=4))) == [*range(7), *range(12, 18)]


def test_its_rows_are_those_of_datasets(root: Path) -> None:
    pytest.importorskip("datasets")
    stream = StreamingLeRobotDataset("me/tiny", root)
    assert [row["index"] for row in stream.hf_dataset] == list(range(sum(LENGTHS)))


def test_what_cannot_be_streamed_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="repo_type must be 'dataset' or 'bucket', got 'space'"):
        StreamingLeRobotDataset("me/tiny", root, repo_type="space")
    with pytest.raises(ValueError, match="buckets of the hub are not read"):
        StreamingLeRobotDataset("me/tiny", root, repo_type="bucket")
    with pytest.raises(ValueError, match="buffer_size must be at least 1, got 0"):
        StreamingLeRobotDataset("me/tiny", root, buffer_size=0)


# from the hub


REPO, TOP = "me/films", "observation.images.top"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    pytest.importorskip("av")
    pytest.importorskip("huggingface_hub")
    made = tiny_lerobot(tmp_path / "films", version="v2.1", cameras={TOP: ("video", (16, 16))}, lengths=[2] * 20)
    with HubServer({REPO: {"main": made, "v2.1": made}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def videos(server: HubServer) -> list[str]:
    return [name for name in server.files if name.endswith(".mp4")]


def test_videos_of_the_hub_come_as_items_need_them(hub: HubServer, tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path / "cache", "buffer_size": 1, "max_num_shards": 2}
    stream = StreamingLeRobotDataset(REPO, **options)
    assert not videos(hub)
    items = iter(stream)
    first = next(items)
    begun = len(set(videos(hub)))
    assert 1 <= begun <= FILES_AHEAD + 1 < 20
    rest = [first, *items]
    assert len(videos(hub)) == len(set(videos(hub))) == 20
    # the order and the items of one whose files are all there
    whole = StreamingLeRobotDataset("me/films", tmp_path / "films", buffer_size=1, max_num_shards=2)
    for mine, theirs in zip(rest, whole, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    # the cache keeps them, also for others
    hub.requests.clear()
    assert numbers(StreamingLeRobotDataset(REPO, **options)) == [int(item["index"]) for item in rest]
    assert not hub.files
    assert len(StreamingLeRobotDataset(REPO, **options, local_files_only=True).dataset) == 40


def test_workers_share_what_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    stream = StreamingLeRobotDataset(REPO, cache_dir=tmp_path / "cache", buffer_size=16)
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    assert sorted(int(item["index"]) for item in loader) == list(range(40))
    assert set(videos(hub)) == {f"videos/chunk-000/{TOP}/episode_{n:06d}.mp4" for n in range(20)}


def test_a_file_that_does_not_come_is_named_and_the_next_try_goes_on(hub: HubServer, tmp_path: Path) -> None:
    stream = StreamingLeRobotDataset(REPO, cache_dir=tmp_path / "cache", buffer_size=1, max_num_shards=1)
    next(iter(stream))
    hub.gated = (REPO,)
    with pytest.raises(DatasetNotFoundError, match=r"\.mp4 of me/films@?\S* is gated"):
        list(stream)
    # some that were asked for may have been refused
    had = {name for name in set(videos(hub)) if [*tmp_path.glob(f"cache/**/{name}")]}
    assert had
    hub.gated = ()
    hub.requests.clear()
    assert sorted(numbers(stream)) == list(range(40))
    assert had.isdisjoint(videos(hub))


def test_fetching_ahead_is_bounded() -> None:
    asked: list[str] = []

    class Fetched:
        def fetch(self, names: list[str], *, progress: bool) -> None:
            asked.extend(names)

    given: list[int] = []
    chunks = chunks_of_fetched(iter(range(500)), lambda number: [f"{number // 5}"], Fetched())
    for chunk in chunks:
        given += chunk
        assert len(asked) <= given[-1] // 5 + 1 + FILES_AHEAD
    assert given == list(range(500))
    # by threads, each file once
    assert sorted(asked, key=int) == [f"{number}" for number in range(100)]
