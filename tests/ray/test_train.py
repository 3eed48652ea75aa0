"""Loaders in Ray Train: a rank each, and exactly where they were after a worker was killed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.errors import StateError

pytest.importorskip("ray.train", reason="Ray Train is not installed: pip install 'stepwell[ray]'")
from stepwell.ray import prepare_loader, restore_state, save_state

# of Ray and what it imports
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(240)]

# a report of Ray Train takes two seconds
STEPS, EVERY, KILLED_AT = 96, 6, 14


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    store = stepwell.create(tmp_path / "steps.well", {"number": stepwell.Array((), "int64")})
    with store.writer() as writer:
        for first in range(0, STEPS, 24):
            writer.add_episode({"number": np.arange(first, first + 24)})
    store.refresh()
    return store


def make_loader(path: str) -> stepwell.Loader:
    return stepwell.Loader(
        stepwell.open(path, mode="r"), batch_size=4, order="random", seed=3, drop_last=True, epochs=2
    )


def trained(make: Callable[[str], stepwell.Loader], every: int, killed_at: int | None) -> Callable[[Any], None]:
    """Return a training function, which Ray takes by value: it writes down the batches of each attempt and rank."""

    def train(config: dict[str, str]) -> None:
        import json
        import os
        import signal
        import tempfile
        from pathlib import Path

        import ray.train

        from stepwell.ray import prepare_loader, restore_state, save_state

        loader = prepare_loader(make(config["store"]))
        checkpoint = ray.train.get_checkpoint()
        is_resumed = restore_state(loader, checkpoint)
        context = ray.train.get_context()
        rank = context.get_world_rank()
        number = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as directory:
                number = int(Path(directory, "number").read_text())
        with Path(config["found"], f"{int(is_resumed)}.{rank}.jsonl").open("w") as log:
            for batch in loader:
                log.write(json.dumps([number, batch["number"].tolist()]) + "\n")
                log.flush()
                number += 1
                if rank == 1 and number == killed_at and not is_resumed:
                    os.kill(os.getpid(), signal.SIGKILL)
                if number % every:
                    continue
                # every rank reports, one with a checkpoint
                with tempfile.TemporaryDirectory() as directory:
                    if rank == 0:
                        save_state(loader, directory)
                        Path(directory, "number").write_text(str(number))
                    made = ray.train.Checkpoint.from_directory(directory) if rank == 0 else None
                    ray.train.report({"number": number}, checkpoint=made)
        Path(config["found"], f"done.{rank}").write_text(str(context.get_world_size()))

    return train


def test_training_goes_on_exactly_after_a_worker_was_killed(store: stepwell.Store, tmp_path: Path) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    DataParallelTrainer(
        trained(make_loader, EVERY, KILLED_AT),
        train_loop_config={"store": str(store.path), "found": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)),
    ).fit()
    for rank in range(2):
        assert (tmp_path / f"done.{rank}").read_text() == "2"
        whole = [batch["number"].tolist() for batch in make_loader(str(store.path)).for_rank(rank, 2)]
        first, second = ([json.loads(line) for line in (tmp_path / f"{n}.{rank}.jsonl").open()] for n in range(2))
        # at the last checkpoint that Ray had taken note of
        resumed_at = second[0][0]
        assert resumed_at in range(EVERY, KILLED_AT, EVERY)
        assert len(first) >= resumed_at
        assert [number for number, _ in second] == list(range(resumed_at, len(whole)))
        for number, batch in first + second:
            assert batch == whole[number]


def test_a_loader_with_a_rank_of_its_own_is_refused(store: stepwell.Store) -> None:
    loader = stepwell.Loader(store, rank=1, world_size=2)
    with pytest.raises(StateError, match="rank 1 of 2"):
        prepare_loader(loader)


def test_a_state_is_saved_and_restored_without_ray_train(store: stepwell.Store, tmp_path: Path) -> None:
    loader = make_loader(str(store.path))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    assert save_state(loader, tmp_path).read_bytes()
    following = [batch["number"].tolist() for batch in batches]
    other = make_loader(str(store.path))
    assert not restore_state(other, None)
    assert restore_state(other, tmp_path)
    assert [batch["number"].tolist() for batch in other] == following


def test_a_checkpoint_without_a_state_is_refused(store: stepwell.Store, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"no stepwell-loader\.json"):
        restore_state(make_loader(str(store.path)), tmp_path)
    Path(tmp_path, "stepwell-loader.json").write_text("no JSON")
    with pytest.raises(StateError, match="damaged"):
        restore_state(make_loader(str(store.path)), tmp_path)
