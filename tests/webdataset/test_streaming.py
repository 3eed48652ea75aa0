"""Shards of another machine, read where they are: each fetched once an epoch, though the cache holds few of them."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards import npy, write_tar  # type: ignore[import-not-found]
from web_server import WebServer

import stepwell
from stepwell import Loader
from stepwell.errors import DecodeError
from stepwell.files.addresses import cache_directory
from stepwell.order import pooled
from stepwell.references import remote_files

NUM_SHARDS, NUM_SAMPLES = 10, 30


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    folder = tmp_path / "web"
    folder.mkdir()
    for number in range(NUM_SHARDS):
        members = []
        for sample in range(number * NUM_SAMPLES, (number + 1) * NUM_SAMPLES):
            members += [
                (f"{sample:05d}.vec.npy", npy(np.full(500, sample, "f4"))),
                (f"{sample:05d}.cls", b"%d" % sample),
            ]
        write_tar(folder / f"{number}.tar", members)
    # one process with one thread needs no time between being told of a file and opening it
    monkeypatch.setattr(remote_files, "GRACE_SECONDS", 0.0)
    # room for three
    monkeypatch.setenv("STEPWELL_CACHE_BYTES", str(3 * (folder / "0.tar").stat().st_size + 1000))
    with WebServer(folder) as server:
        yield server


def assert_served_once(loader: Loader) -> list[int]:
    seen = []
    for batch in loader:
        assert (batch["vec"] == batch["label"][:, None]).all()
        seen += batch["label"].tolist()
    assert sorted(seen) == list(range(NUM_SHARDS * NUM_SAMPLES))
    return seen


def test_pooled_over_shards_fetches_each_once_an_epoch_and_serves_each_sample_once(web: WebServer) -> None:
    store = stepwell.open(f"webdataset://{web.url}/{{0..{NUM_SHARDS - 1}}}.tar")
    assert [segment.num_rows for segment in store.segments] == [NUM_SAMPLES] * NUM_SHARDS
    # a pool of about four shards, in blocks of a few samples
    order = pooled(bytes=4 * NUM_SAMPLES * 2000, blocks=16, shards=True)
    loader = Loader(store, {"vec": "vec.npy", "label": "cls"}, batch_size=16, order=order, threads=1)
    web.fetched.clear()
    epochs = [assert_served_once(loader) for _ in range(3)]
    # the pool reads ahead into a fourth epoch
    assert max(Counter(web.fetched).values()) <= 4 and 3 * (NUM_SHARDS - 3) <= len(web.fetched) <= 3 * NUM_SHARDS + 3
    assert epochs[0] != epochs[1] and len(list((cache_directory() / "remote").glob("*.tar"))) == 3
    # mixed across shards, not within one alone
    first = np.array(epochs[0][:NUM_SAMPLES]) // NUM_SAMPLES
    assert len(set(first.tolist())) >= 3


def test_shards_that_all_fit_are_fetched_once_for_all_epochs(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPWELL_CACHE_BYTES")
    store = stepwell.open(f"webdataset://{web.url}/{{0..{NUM_SHARDS - 1}}}.tar")
    for order in ("random", "sequential"):
        assert_served_once(Loader(store, {"vec": "vec.npy", "label": "cls"}, batch_size=16, order=order, threads=1))
    assert sorted(web.fetched) == sorted(f"{number}.tar" for number in range(NUM_SHARDS))


def test_it_opens_again_without_fetching(web: WebServer) -> None:
    address = f"webdataset://{web.url}/{{0..{NUM_SHARDS - 1}}}.tar"
    first = stepwell.open(address)
    web.fetched.clear()
    assert stepwell.open(address).path == first.path and web.fetched == []


@pytest.mark.parametrize(
    ("name", "order"), [("vec.npy", pooled(bytes=240_000, blocks=16, shards=True)), ("text.bin", "sequential")]
)
def test_shards_that_went_from_the_cache_take_no_space_any_more(
    web: WebServer, name: str, order: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files._OPEN, "max_size", 1)
    if name == "text.bin":
        for path in (tmp_path / "web").iterdir():
            write_tar(path, [(f"{path.stem}{n}.text.bin", bytes(1000)) for n in range(100)])
    store = stepwell.open(f"webdataset://{web.url}/{{0..{NUM_SHARDS - 1}}}.tar")
    loader = Loader(store, {"value": name}, batch_size=7, order=order, threads=0)
    assert sum(len(batch["value"]) for batch in loader) == len(store)
    links = [*Path("/proc/self/fd").iterdir(), *Path("/proc/self/map_files").iterdir()]
    held = {str(link.readlink()) for link in links if link.is_symlink()}
    removed = [path for path in held if str(cache_directory()) in path and path.endswith("(deleted)")]
    # the last one of the index, and one that went when the last was fetched
    assert len(removed) <= 2


def test_shard_that_is_another_on_the_server_by_its_first_read_is_an_error(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stepwell.open(f"webdataset://{web.url}/{{0..{NUM_SHARDS - 1}}}.tar")
    assert repr(store).startswith(f"<Store webdataset://{web.url}/{{0..9}}.tar  300 episodes") and "10 files" in repr(
        store
    )
    other = [(f"{sample:05d}.{ending}", data) for sample in range(60, 90)
             for ending, data in (("vec.npy", npy(np.full(500, -1, "f4"))), ("cls", b"%d" % sample))]  # fmt: skip
    write_tar(tmp_path / "web" / "2.tar", other)
    os.utime(tmp_path / "web" / "2.tar", ns=(0, 10**18))
    # as another process, which asks what the shards are
    monkeypatch.setattr(remote_files, "_STATES", {})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "elsewhere"))
    assert store[59]["vec.npy"][0, 0] == 59
    with pytest.raises(
        DecodeError, match=r"2\.tar: the file is another one than when.*version.*Open the data set again"
    ):
        store[60]["vec.npy"]
    assert [finding.file for finding in store.verify().findings] == [f"{web.url}/2.tar"]
    again = stepwell.open(f"webdataset://{web.url}/{{0..{NUM_SHARDS - 1}}}.tar")
    assert again[60]["vec.npy"][0, 0] == -1
