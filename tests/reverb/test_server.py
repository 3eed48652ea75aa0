"""Servers by Reverb's names: checkpoints, restarts, lost connections, who may come in."""

import pickle
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from reverb_samples import drained
from tcp_proxy import TcpProxy

from stepwell import reverb
from stepwell.errors import ServiceError
from stepwell.reverb import checkpointers, rate_limiters, selectors

Serve = Callable[..., tuple[reverb.Server, reverb.Client]]


def table_of(**changes: object) -> reverb.Table:
    made = reverb.Table("t", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1))
    return made.replace(**changes)


def test_clients_pickle_and_samples_come_step_by_step(serve: Serve) -> None:
    server, client = serve(table_of())
    again = pickle.loads(pickle.dumps(client))
    assert again.server_address == f"localhost:{server.port}"
    with client.trajectory_writer(3) as writer:
        for number in range(3):
            writer.append({"a": number, "b": number * 10})
        writer.create_item("t", 1.0, {"a": writer.history["a"][:], "b": writer.history["b"][:]})
    (steps,) = again.sample("t")
    assert [[int(value) for value in step.data] for step in steps] == [[0, 0], [1, 10], [2, 20]]
    with client.trajectory_writer(3) as writer:
        writer.append({"a": 1, "b": 2})
        writer.create_item("t", 1.0, {"a": writer.history["a"][:], "b": writer.history["b"][-1]})
    client.mutate_priorities("t", deletes=[steps[0].info.key])
    with pytest.raises(ValueError, match="emit_timesteps=False"):
        next(client.sample("t"))


def test_a_checkpoint_has_all_and_touches_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    (root / "zzz").mkdir()

    def begin(**changes: object) -> reverb.Server:
        tables = [table_of(max_times_sampled=3, **changes), table_of(name="empty", sampler=selectors.Uniform())]
        return reverb.Server(tables, checkpointer=checkpointers.DefaultCheckpointer(str(root)))

    with begin() as server:
        client = server.localhost_client()
        with client.trajectory_writer(4) as writer:
            for number in range(6):
                writer.append({"a": np.full(3, number), "text": f"step {number}"})
                if number >= 3:
                    writer.create_item("t", number, [writer.history["a"][[-1, -3]], writer.history["text"][-1]])
        drained(client, "t", 2)
        first = client.checkpoint()
        second = client.checkpoint()
        assert Path(first).is_dir()
        assert Path(second).is_dir()
    assert (root / "notes.txt").read_text() == "mine"
    assert (root / "zzz").is_dir()
    with begin() as server:
        client = server.localhost_client()
        info = client.server_info()["t"]
        assert (info.current_size, info.num_episodes, info.num_unique_samples) == (3, 1, 1)
        assert info.rate_limiter_info.insert_stats.completed == 3
        samples = drained(client, "t", 3)
        # the first was drawn twice before, and goes with its third time
        assert [int(sample.info.times_sampled) for sample in samples] == [3, 1, 2]
        assert [sample.data[0][:, 0].tolist() for sample in samples] == [[3, 1], [4, 2], [4, 2]]
        assert [bytes(sample.data[1]) for sample in samples] == [b"step 3", b"step 4", b"step 4"]
        assert [sample.info.priority for sample in samples] == [3.0, 4.0, 4.0]
    with pytest.raises(ValueError, match="lacks"):
        reverb.Server([table_of(name="other")], checkpointer=checkpointers.DefaultCheckpointer(str(root)))


def test_a_writer_goes_on_with_a_server_that_was_begun_anew(serve: Serve) -> None:
    server, client = serve(table_of(max_size=1000))
    with client.trajectory_writer(3) as writer:
        for number in range(10):
            writer.append(number)
            writer.create_item("t", 1.0, writer.history[-1:])
        writer.flush()
        port = server.port
        server.stop()
        for number in range(10, 20):
            writer.append(number)
            writer.create_item("t", 1.0, writer.history[-min(3, number) :])
        other, client = serve(table_of(max_size=1000), port=port)
        writer.flush(timeout_ms=60_000)
    assert other.tables["t"].info.current_size == 10
    client.mutate_priorities("t")
    (sample,) = drained(client, "t", 1)
    assert sample.data[0].tolist() == [8, 9, 10]


def test_items_are_in_once_over_lost_connections(serve: Serve) -> None:
    server, _ = serve(table_of(max_size=10_000, max_times_sampled=1))
    with closing(TcpProxy(server.port)) as proxy:
        client = reverb.Client(proxy.address)
        with client.trajectory_writer(5) as writer:
            for number in range(600):
                writer.append(np.full(20, number))
                writer.create_item("t", 1.0, writer.history[-min(5, number + 1) :])
                if number % 100 == 50:
                    proxy.cut()
            writer.flush(timeout_ms=120_000)
    samples = drained(server.localhost_client(), "t")
    assert [int(sample.data[0][-1, 0]) for sample in samples] == list(range(600))
    assert all((np.diff(sample.data[0][:, 0]) == 1).all() for sample in samples)


def test_a_token_is_asked_for(serve: Serve) -> None:
    server, client = serve(table_of(), token="secret")
    client.insert(1, {"t": 1.0})
    with pytest.raises(ServiceError, match="UNAUTHENTICATED"):
        reverb.Client(f"localhost:{server.port}").reset("t")
    with pytest.raises(ServiceError, match="insecure"):
        reverb.Server([table_of()], address="0.0.0.0")


def test_a_server_that_is_away_is_told_in_time() -> None:
    server = reverb.Server([table_of()])
    client = server.localhost_client()
    server.stop()
    began = time.monotonic()
    with pytest.raises(reverb.DeadlineExceededError):
        client.server_info(timeout=0.3)
    assert time.monotonic() - began < 60


def test_steps_may_lie_in_a_directory(tmp_path: Path) -> None:
    import stepwell

    with reverb.Server([table_of()], path=str(tmp_path / "steps")) as server:
        client = server.localhost_client()
        with client.trajectory_writer(1) as writer:
            for number in range(3):
                writer.append({"observation": {"camera": np.full((2, 2), number, np.uint8)}, "reward": 1.0})
                writer.create_item("t", 1.0, writer.history["reward"][-1:])
    store = stepwell.open(tmp_path / "steps" / "0000.well", mode="r")
    assert list(store.schema or ()) == ["observation.camera", "reward"]
    assert store.num_steps == 3
