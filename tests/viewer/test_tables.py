"""The page of served tables: its numbers are the table's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.replay.table_info import MAX_READ
from stepwell.viewer.tables import is_server, make_tables_app

pytest.importorskip("grpc", reason="needs grpcio")
pytest.importorskip("starlette", reason="needs starlette")
pytest.importorskip("httpx2", reason="needs httpx2")
from starlette.testclient import TestClient

from stepwell.service import Client, Server, open_table

NUM = 300


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """Yield a server of two tables: one whose items were drawn and given priorities, and a small one."""
    store = stepwell.create(tmp_path / "run.well", {"x": stepwell.Array(2)}, capacity=10_000)
    tables = [open_table(store, "replay", sampler="prioritized"), open_table(store, "recent", max_size=40)]
    server = Server(tables, "127.0.0.1:0")
    with store.writer() as writer:
        writer.add_episode({"x": np.zeros((NUM, 2), np.float32)}, terminated=True)
    for table in tables:
        table.follow()
    drawn = tables[0].sample(64)
    tables[0].update_priorities(drawn.keys, np.linspace(0.1, 9, 64))
    yield server, tables
    server.stop()


def test_numbers_are_the_tables(server: Any) -> None:
    served, (replay, recent) = server
    with Client(served.address, timeout=5) as client:
        page = TestClient(make_tables_app(client), base_url="http://127.0.0.1")
        found = page.get("/api/stats").json()
        assert found["address"] == served.address
        for table in (replay, recent):
            info = found["tables"][table.name]
            assert info["counts"] == table.info.to_json()["counts"]
            assert (info["size"], info["max_size"]) == (len(table), table.info.max_size)


def test_spreads_are_numpys_over_the_items(server: Any) -> None:
    served, (replay, recent) = server
    with Client(served.address, timeout=5) as client:
        found = TestClient(make_tables_app(client), base_url="http://127.0.0.1").get("/api/spread").json()
    for table in (replay, recent):
        items = table._contents.items
        slots = items.slots
        want = {
            "priority": items.priority[slots],
            # the newest was inserted just now
            "age": np.arange(len(slots))[::-1],
            "draws": items.times_sampled[slots],
        }
        told = found[table.name]
        assert (told["num_items"], told["num_read"]) == (len(table), len(table))
        for name, values in want.items():
            low, high = values.min(), values.max()
            counts = np.histogram(values, 40, (low, high if high > low else low + 1))[0]
            assert told[name]["counts"] == counts.tolist()
            assert (told[name]["low"], told[name]["high"]) == (low, high)
            assert np.isclose(told[name]["mean"], values.mean())
    # 64 updates came after all inserts: what was updated last is not stale, what never was is by all that came since
    assert found["replay"]["staleness"]["low"] == 0
    assert found["replay"]["staleness"]["high"] >= 64


def test_of_many_items_evenly_spaced_ones_are_read(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "many.well", {"x": stepwell.Array((), "<f4")}, capacity=300_000)
    table = stepwell.Table(store)
    with store.writer() as writer:
        writer.add_episode({"x": np.zeros(3 * MAX_READ, np.float32)}, terminated=True)
    table.follow()
    told = table.spread()
    assert told["num_items"] == 3 * MAX_READ
    assert MAX_READ <= told["num_read"] <= 2 * MAX_READ
    assert abs(told["age"]["mean"] - 1.5 * MAX_READ) < 10


def test_an_empty_table_is_spread_too(tmp_path: Path) -> None:
    table = stepwell.Table(stepwell.create(tmp_path / "e.well", {"x": stepwell.Array((), "<f4")}))
    assert table.spread()["num_items"] == sum(table.spread()["priority"]["counts"]) == 0


def test_a_server_that_is_away_is_told(server: Any) -> None:
    served, _ = server
    with Client(served.address, timeout=0.2) as client:
        page = TestClient(make_tables_app(client), base_url="http://127.0.0.1")
        assert page.get("/api/stats").status_code == 200
        served.stop()
        for path in ("stats", "spread"):
            answer = page.get(f"/api/{path}")
            assert (answer.status_code, served.address in answer.text) == (422, True)


def test_strangers_are_told_nothing(server: Any) -> None:
    served, _ = server
    with Client(served.address, timeout=5) as client:
        assert TestClient(make_tables_app(client), base_url="http://evil.example").get("/api/stats").status_code == 400
        far = TestClient(make_tables_app(client, "t"), base_url="http://robot.example")
        assert far.get("/api/stats").status_code == 403
        assert far.get("/api/stats?token=t").status_code == 200


def test_an_address_is_told_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("robot:7070", "10.0.0.1:1", "[::1]:7070", "unix:/tmp/a"):
        assert is_server(text)
    for text in ("a.well", "./a", "lerobot://a/b", "webdataset://https://h:80/x.tar", "C:x", "robot:"):
        assert not is_server(text)
    (tmp_path / "odd:1").mkdir()
    assert not is_server("odd:1")


def test_the_command_shows_tables(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="needs uvicorn")
    served, _ = server
    assert main(["view", served.address, "--once"]) == 0
    assert capsys.readouterr().out == f"http://127.0.0.1:7080/ shows 2 tables of {served.address}\n"
    assert main(["view", served.address, "--edit", "--once"]) == 1
    assert "--edit is of stores" in capsys.readouterr().err
