"""Served tables that Ray places, and begins anew when they are killed."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stepwell[ray]'")
pytest.importorskip("grpc", reason="grpcio is not installed")

import stepwell


def test_shards_serve_and_go_on_after_they_were_killed(tmp_path: Path, local_ray: Any) -> None:
    from stepwell.ray import start_replay

    schema = {"x": stepwell.Array((), "int64")}
    with start_replay(
        {"replay": {}}, 2, path=str(tmp_path), schema=schema, capacity=10_000, host="127.0.0.1"
    ) as replay:
        assert len(set(replay.addresses)) == 2
        with replay.client() as client:
            for actor in range(8):
                # each goes to a shard by its name
                with client.writer(f"actor-{actor}") as writer:
                    for number in range(50):
                        writer.append(x=number)
                    writer.end_episode(truncated=True)
            with client.loader({"x": "x"}, batch_size=64) as loader:
                assert next(loader)["x"].shape == (64,)
            before = replay.addresses
            local_ray.kill(replay._shards[0], no_restart=False)
            assert replay.refresh() == before
            with client.writer("e") as writer:
                for number in range(50, 60):
                    writer.append(x=number)
            deadline = time.monotonic() + 60
            with client.loader({"x": "x"}, batch_size=512) as loader:
                while int(np.max(next(loader)["x"])) < 50:
                    assert time.monotonic() < deadline
    stores = [stepwell.open(tmp_path / f"shard-{number:04d}.well", mode="r") for number in range(2)]
    assert sum(store.num_steps for store in stores) == 410
