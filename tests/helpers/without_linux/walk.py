"""Recording by spawned processes, loading, replay, a server of this machine, video; prints what was seen of each."""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import stepwell


class Source:
    """Eight episodes of 20 steps."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return {"x": np.full((20, 3), i, np.float32)}


def load(path: str, sending) -> None:
    loader = stepwell.Loader(stepwell.open(path, mode="r"), {"x": range(4)}, batch_size=16, order="pooled", threads=2)
    sending.send(sum(len(batch["x"]) for batch in loader))


def main() -> None:
    folder = tempfile.mkdtemp()
    print(sys.platform, hasattr(os, "posix_fallocate"), Path("/proc/self").exists(), os.access("/dev/shm", os.W_OK))
    multiprocessing.set_start_method("spawn")
    store = stepwell.write_episodes(f"{folder}/written.well", Source(), workers=2)
    print(store.num_episodes, store.num_steps)
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.Process(target=load, args=(str(store.path), sending))
    child.start()
    print(receiving.recv())
    child.join()
    past_cache = stepwell.Loader(store, {"x": range(4)}, batch_size=16, order="random", page_cache=False)
    print(sum(len(batch["x"]) for batch in past_cache))

    ring = stepwell.create(f"{folder}/ring.well", {"x": stepwell.Array(3)}, capacity=10_000)
    table = stepwell.Table(ring, sampler="prioritized")
    with ring.writer() as writer:
        for number in range(300):
            writer.append(x=np.full(3, number, np.float32))
            if number % 30 == 29:
                writer.end_episode()
    with stepwell.ReplayLoader(table, {"x": "x"}, batch_size=32) as batches:
        batch = next(batches)
        print(len(table), batches.update_priorities(batch, np.ones(32)))
    served(stepwell.create(":memory:", {"x": stepwell.Array(3)}))
    filmed(f"{folder}/film.well")


def served(store: stepwell.Store) -> None:
    """Draw from a server on this machine, whose socket without a file a Mac does not have."""
    try:
        from stepwell.service import Client, Server
    except ImportError:
        print("no grpc")
        return
    with store.writer() as writer:
        for number in range(20):
            writer.append(x=np.full(3, number, np.float32))
        writer.end_episode()
    with (
        Server(stepwell.Table(store)) as server,
        Client(server.address) as client,
        client.loader({"x": "x"}, batch_size=8) as batches,
    ):
        print(next(batches)["x"].shape)


def filmed(path: str) -> None:
    """Record video, whose frames a thread encodes, and read it in a pool, past the page cache, too."""
    try:
        store = stepwell.create(path, {"x": stepwell.Video((32, 48, 3), gop=4)}, fps=10)
    except ImportError:
        print("no av")
        return
    with store.writer() as writer:
        for number in range(12):
            writer.append(x=np.full((32, 48, 3), 20 * number, np.uint8))
        writer.end_episode()
    for page_cache in (True, False):
        loader = stepwell.Loader(store, {"x": [-1, 0]}, batch_size=12, order="pooled", threads=2, page_cache=page_cache)
        (batch,) = loader
        assert np.abs(batch["x"][:, 1, 16, 24, 0] - 20.0 * batch.anchors).max() < 8
    print(batch["x"].shape)


if __name__ == "__main__":
    main()
