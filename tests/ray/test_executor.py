"""Chunks that actors of Ray do: the same bytes as of one process, whoever dies."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stepwell[ray]'")

import stepwell
from stepwell.errors import StepwellError, WorkerError
from stepwell.testing import tiny_store
from stepwell.webdataset import write_webdataset


class Numbers:
    """Forty episodes; a worker that reads certain ones is killed, once each."""

    def __init__(self, deadly: tuple[int, ...], notes: Path) -> None:
        self.deadly, self.notes = deadly, notes

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        note = self.notes / str(index)
        if index in self.deadly and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"number": np.full(index % 5 + 1, index), "image": np.full((index % 5 + 1, 8, 8), index, np.uint8)}


class Listed:
    """Eight episodes, each of the number that names the file of a directory."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        (note,) = self.notes.iterdir()
        return {"number": np.array([int(note.name)])}


def digests(store: stepwell.Store) -> dict[str, str]:
    """Return the digest of each column of each segment."""
    found = {}
    for segment in store.segments:
        for path in sorted(segment.path.glob("*")):
            if path.suffix in (".npy", ".bin") and path.name != "episodes.npy":
                found[f"{segment.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture
def executor(local_ray: Any) -> Iterator[Any]:
    from stepwell.ray import RayExecutor

    yield RayExecutor(2, max_retries=3)


def contents(store: stepwell.Store) -> list[list[int]]:
    return [episode["number"].tolist() for episode in store]


def test_killed_workers_write_what_one_process_does(tmp_path: Path, executor: Any) -> None:
    plain = stepwell.write_episodes(tmp_path / "plain.well", Numbers((), tmp_path), workers=1, chunk_episodes=4)
    source = Numbers((2, 17, 30), tmp_path)
    made = stepwell.write_episodes(tmp_path / "ray.well", source, executor=executor, chunk_episodes=4)
    assert contents(made) == contents(plain) == [[index] * (index % 5 + 1) for index in range(40)]
    tags = [segment.name[-4:] for segment in made.segments]
    assert len(tags) == 10
    own, theirs = (list(digests(store).values()) for store in (made, plain))
    assert sorted(own) == sorted(theirs)
    assert made.verify().is_ok
    # nothing but what one process leaves
    assert sorted(path.name for path in made.path.iterdir()) == sorted(path.name for path in plain.path.iterdir())


def test_relative_paths_of_a_source_are_those_of_the_driver(
    tmp_path: Path, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "2").touch()
    made = stepwell.write_episodes("ray.well", Listed(Path("notes")), executor=executor, chunk_episodes=4)
    assert contents(made) == [[2]] * 8


def test_a_worker_that_dies_too_often_is_an_error_and_leaves_nothing(tmp_path: Path, local_ray: Any) -> None:
    from stepwell.ray import RayExecutor

    with pytest.raises(WorkerError, match="item"):
        stepwell.write_episodes(
            tmp_path / "ray.well", Numbers((2,), tmp_path), executor=RayExecutor(2, max_retries=0), chunk_episodes=4
        )
    assert not (tmp_path / "ray.well").exists()


def test_an_item_that_cannot_be_read_is_named(tmp_path: Path, executor: Any) -> None:
    class Bad(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 7:
                raise ValueError("a torn page")
            return super().__getitem__(index)

    with pytest.raises(WorkerError, match="item 7 could not be written: ValueError: a torn page"):
        stepwell.write_episodes(tmp_path / "ray.well", Bad((), tmp_path), executor=executor, chunk_episodes=4)


def test_conversions_and_exports_take_an_executor(tmp_path: Path, executor: Any) -> None:
    store = tiny_store(tmp_path / "tiny.well")
    stepwell.convert(store, tmp_path / "a.well", {"observation.image": "zstd"}, workers=1)
    stepwell.convert(store, tmp_path / "b.well", {"observation.image": "zstd"}, executor=executor)
    one, other = (stepwell.open(tmp_path / name, mode="r") for name in ("a.well", "b.well"))
    assert list(digests(one).values()) == list(digests(other).values())
    plain = write_webdataset(store, tmp_path / "plain", shard_samples=5, workers=1)
    made = write_webdataset(store, tmp_path / "ray", shard_samples=5, executor=executor)
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in plain]


def test_a_target_that_nodes_do_not_see_is_told(tmp_path: Path, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.ray import executor as module

    read = module._RayWorker.read
    monkeypatch.setattr(module._RayWorker, "read", lambda self, path: read(self, path + ".elsewhere"))
    with pytest.raises(StepwellError, match="all nodes share"):
        stepwell.write_episodes(tmp_path / "ray.well", Numbers((), tmp_path), executor=executor)


def test_numbers_that_cannot_be_are_refused(local_ray: Any) -> None:
    from stepwell.ray import RayExecutor

    for options in ({"num_workers": 0}, {"num_workers": 1, "max_retries": -1}):
        with pytest.raises(StepwellError, match="allowed"):
            RayExecutor(**options)


def test_workers_that_cannot_be_had_are_an_error(
    local_ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.ray import RayExecutor, executor

    monkeypatch.setattr(executor, "SEEN_SECONDS", 1.0)
    starved = RayExecutor(2, resources_per_worker={"CPU": 1, "moons": 1})
    with pytest.raises(WorkerError, match=r"begun 0 of 2 workers .*moons.* Ask for fewer workers"):
        stepwell.write_episodes(tmp_path / "ray.well", Numbers((), tmp_path), executor=starved)
    assert not (tmp_path / "ray.well").exists()


def test_a_working_directory_that_was_removed_is_not_needed(
    tmp_path: Path, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    made = stepwell.write_episodes(tmp_path / "ray.well", Numbers((), tmp_path), executor=executor)
    assert len(made) == 40


def test_actors_are_killed_at_random_on_several_nodes(tmp_path: Path) -> None:
    code = f"""
        import random, sys, threading, time
        from pathlib import Path
        import numpy as np
        import ray
        from ray.cluster_utils import Cluster
        import stepwell
        from stepwell.ray import RayExecutor
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_executor import digests

        class Deadly(RayExecutor):
            killed = 0
            def begin(self, *arguments):
                workers = super().begin(*arguments)
                def kill():
                    rng = random.Random(0)
                    while Deadly.killed < 6:
                        time.sleep(rng.random() / 4)
                        ray.kill(rng.choice(workers)._actor)
                        Deadly.killed += 1
                threading.Thread(target=kill, daemon=True).start()
                return workers

        class Slow:
            def __len__(self):
                return 40
            def __getitem__(self, index):
                time.sleep(0.05)
                return {{"number": np.full(index % 5 + 1, index)}}

        cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1, "include_dashboard": False}})
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1)
            ray.init(address=cluster.address, log_to_driver=False)
            out = Path({str(tmp_path)!r})
            plain = stepwell.write_episodes(out / "plain.well", Slow(), workers=1, chunk_episodes=2)
            executor = Deadly(3, max_retries=20)
            made = stepwell.write_episodes(out / "ray.well", Slow(), executor=executor, chunk_episodes=2)
            nodes = {{node["NodeID"] for node in ray.nodes() if node["Alive"]}}
            assert sorted(digests(made).values()) == sorted(digests(plain).values())
            assert [each["number"].tolist() for each in made] == [each["number"].tolist() for each in plain]
            assert made.verify().is_ok
            print(len(made), len(nodes), Deadly.killed > 0)
        finally:
            ray.shutdown()
            cluster.shutdown()
    """
    # elsewhere than where Ray looks for a cluster to connect to; paths of sockets are short
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as directory:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True, text=True, timeout=200, check=False, env={**os.environ, "RAY_TMPDIR": directory},
        )  # fmt: skip
    assert done.stdout.strip().endswith("40 3 True"), done.stderr[-3000:]
