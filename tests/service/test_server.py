"""Who may come in, what is refused, and what a server tells of itself."""

import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import stepwell
from stepwell import Array, Table
from stepwell.cli.main import main
from stepwell.cli.serving import Look, make_screen, parse_table
from stepwell.errors import ServiceError, StepwellError, StoreBusyError, TableError
from stepwell.replay import Pattern, SampleToInsertRatio
from stepwell.service import TLS, Client, Limits, Server
from stepwell.service.messages import PROTOCOL, Kind, pack, unpack
from stepwell.service.settings import SERVICE, import_grpc, parse_address


def write_ten(client, **options):
    with client.writer(**options) as writer:
        for number in range(10):
            writer.append(obs=[0, 0, 0], number=number, actor=0)


@pytest.fixture
def served(store):
    with Server(Table(store)) as server, Client(server.address, timeout=20) as client:
        yield server, client


def test_a_token_is_asked_for(store):
    with Server(Table(store), token="right") as server:
        with Client(server.address, token="right") as client:
            write_ten(client)
            assert client.info()["replay"].size == 10
        for token in (None, "wrong", "righ", "Bearer right"):
            with Client(server.address, token=token, timeout=5) as client:
                why = r"Give Client\(token=" if token is None else "not the one of this server"
                with pytest.raises(ServiceError, match=f"UNAUTHENTICATED.*{why}"):
                    client.info()
                with pytest.raises(ServiceError, match="UNAUTHENTICATED"):
                    client.writer()
                with pytest.raises(ServiceError, match="UNAUTHENTICATED"):
                    client.loader()


@pytest.mark.parametrize("token", ["", " ", "right\n", "ü", 3])
def test_a_token_that_guards_nothing_is_refused(store, token):
    with pytest.raises(ServiceError, match=r"the token .* Allowed: letters"):
        Server(Table(store), "0.0.0.0:0", token=token)
    with pytest.raises(ServiceError, match=r"the token .* Allowed: letters"):
        Client("127.0.0.1:1", token=token)


def test_other_machines_are_let_in_only_where_it_is_said(store):
    table = Table(store)
    with pytest.raises(ServiceError, match="every machine"):
        Server(table, "0.0.0.0:0")
    for address in ("0.0.0.0:0", "unix:/a"):
        with pytest.raises(ServiceError, match="this machine only"):
            Server(table, "0.0.0.0:0", metrics=address, token="x")
    for options in ({"token": "x"}, {"insecure": True}):
        with Server(table, "0.0.0.0:0", **options) as server:
            assert server.port


def certificates(directory):
    """Make an authority, and certificates of a server and of a client, by the openssl that is there."""

    def run(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=directory)

    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        run("req", *ec, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=localhost")
        run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", f"{name}.pem", "-extfile", "names",
        )  # fmt: skip


def test_tls_and_mutual_tls(store, tmp_path):
    try:
        certificates(tmp_path)
    except FileNotFoundError:
        pytest.skip("openssl is not here")
    files = {name: tmp_path / name for name in (each.name for each in tmp_path.iterdir())}
    own = TLS(files["server.pem"], files["server.key"])
    with Server(Table(store), "localhost:0", tls=own) as server:
        with Client(server.address, tls=TLS(authority=files["ca.pem"])) as client:
            write_ten(client)
            with client.loader(batch_size=4) as loader:
                assert len(next(loader)["number"]) == 4
        with Client(server.address, timeout=0.5) as client, pytest.raises(ServiceError, match="UNAVAILABLE"):
            client.info()
    mutual = TLS(files["server.pem"], files["server.key"], files["ca.pem"])
    with Server(Table(store), "localhost:0", tls=mutual) as server:
        with Client(server.address, tls=TLS(files["client.pem"], files["client.key"], files["ca.pem"])) as client:
            assert client.info()["replay"].size == 10
        with Client(server.address, tls=TLS(authority=files["ca.pem"]), timeout=0.5) as client:
            with pytest.raises(ServiceError, match="UNAVAILABLE"):
                client.info()


def test_a_socket_of_this_machine(store, tmp_path):
    with Server(Table(store), f"unix:{tmp_path}/s") as server, Client(server.address) as client:
        write_ten(client)
        assert client.info()["replay"].size == 10


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":70", "host:99999", "unix:", "http://a:1", "a b:1", "::1:70"]
)
def test_addresses_that_are_none(address):
    with pytest.raises(ServiceError, match="is no address"):
        parse_address(address)


def test_a_port_without_a_host_is_no_address(store):
    with pytest.raises(ServiceError, match="'7070' is no address"):
        Server(Table(store), "7070")


@pytest.mark.parametrize("address", ["host:1", "127.0.0.1:0", "[::1]:70", "unix:/a/b", "my-host.example:7070"])
def test_addresses(address):
    assert parse_address(address) == address


def test_what_cannot_be_served(store):
    table = Table(store)
    with pytest.raises(TableError, match="several stores"):
        Server([table, Table(stepwell.create(":memory:", {"x": Array(1)}), "b")])
    with pytest.raises(TableError, match="two tables of one name"):
        Server([table, Table(store)])
    with pytest.raises(TableError, match="Give one Table"):
        Server([])
    limiter = SampleToInsertRatio(1.0, 10, 10.0)
    with pytest.raises(TableError, match="back_pressure"):
        Server(Table(store, limiter=limiter, back_pressure="wait"))
    with Server(table) as server:
        with pytest.raises(StoreBusyError, match="another server serves"):
            Server(Table(stepwell.open(store.path), "b"))
        other = stepwell.create(":memory:", {"x": Array(1)}, capacity=10)
        with pytest.raises(ServiceError, match=r"cannot serve at .* port 0 takes any that is free"):
            Server(Table(other), server.address)
        with Server(Table(other)):
            pass


def test_a_client_of_another_protocol_is_told(served):
    server, _ = served
    grpc = import_grpc()
    with grpc.insecure_channel(server.address) as channel:
        for name in ("write", "draw"):
            hello = pack(Kind.HELLO, {"protocol": PROTOCOL + 1, "name": "a", "incarnation": "b"})
            (answer,) = channel.stream_stream(f"/{SERVICE}/{name}")(iter([hello]))
            with pytest.raises(ServiceError, match="same stepwell on both sides"):
                unpack(answer)


HELLO = {"protocol": PROTOCOL, "name": "a", "incarnation": "b"}
COLUMNS = {"obs": np.zeros((2, 3), np.float32), "number": np.zeros(2, np.int64), "actor": np.zeros(2, np.int64)}


@pytest.mark.parametrize(
    ("hello", "message"),
    [
        ({**HELLO, "name": ""}, b""),
        ({**HELLO, "name": "a" * 1000}, b""),
        ({**HELLO, "name": 3}, b""),
        ({**HELLO, "num_envs": -1}, b""),
        ({**HELLO, "num_envs": 1 << 40}, b""),
        ({**HELLO, "on_disconnect": "explode"}, b""),
        (HELLO, b"nonsense"),
        (HELLO, pack(Kind.HELLO, HELLO)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0]}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [5, 0, 0], "count": 2}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0], "count": 2}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [-1, 0, 0], "count": 2}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 3}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 1 << 60}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2}, {"obs": COLUMNS["obs"]})),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2}, {**COLUMNS, "obs": np.zeros((2, 4), np.float32)})),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2}, {**COLUMNS, "obs": np.zeros((2, 3), np.float64)})),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "ops": [[9, "end", {}]]}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "ops": [[1, "explode"]]}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "ops": 3}, COLUMNS)),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "ops": [[1, "end", {"final": 7}]]}, COLUMNS)),
        (
            HELLO,
            pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "ops": [[2, "item", "replay", 0, 1 << 40, 1]]}, COLUMNS),
        ),
        (HELLO, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "ops": [[2, "item", "replay", -1, 1, 1]]}, COLUMNS)),
        ({**HELLO, "num_envs": 3}, pack(Kind.STEPS, {"first": [0, 0, 0], "count": 2, "number": 0}, COLUMNS)),
    ],
)
def test_hostile_writers_get_an_error_and_harm_nobody(served, hello, message):
    server, client = served
    grpc = import_grpc()
    with grpc.insecure_channel(server.address) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/write")(iter([pack(Kind.HELLO, hello), message]), timeout=20)
        with pytest.raises(StepwellError):
            for answer in stream:
                unpack(answer, Kind.WELCOME)
    write_ten(client)
    assert client.info()["replay"].size >= 10


@pytest.mark.parametrize(
    "head",
    [
        {"call": "explode"},
        {},
        {"call": "mutate"},
        {"call": "mutate", "table": "../../etc"},
        {"call": "checkpoint", "name": "../escape"},
        {"call": "checkpoint", "name": "/tmp/x"},
        {"call": "publish", "name": ""},
        {"call": "latest", "name": "a", "newer_than": "x"},
        {"call": "latest", "name": "a", "newer_than": float("inf")},
        {"call": "reset", "table": None},
        {"call": "create_item", "table": "replay"},
    ],
)
def test_hostile_calls_get_an_error(served, head):
    server, client = served
    with import_grpc().insecure_channel(server.address) as channel:
        answer = channel.unary_unary(f"/{SERVICE}/call")(pack(Kind.CALL, head), timeout=20)
        with pytest.raises(StepwellError):
            unpack(answer, Kind.ANSWER)
    assert client.info()["replay"].size == 0


def test_a_message_that_is_too_large_is_refused_before_it_is_read(store):
    with Server(Table(store), limits=Limits(message_bytes=1 << 16)) as server, Client(server.address) as client:
        with import_grpc().insecure_channel(server.address) as channel:
            with pytest.raises(import_grpc().RpcError, match="RESOURCE_EXHAUSTED"):
                channel.unary_unary(f"/{SERVICE}/call")(bytes(1 << 17), timeout=20)
        # a writer keeps below it
        with client.writer(batch_steps=1 << 14) as writer:
            columns = {
                "obs": np.zeros((9000, 3), np.float32),
                "number": np.arange(9000),
                "actor": np.zeros(9000, np.int64),
            }
            writer.append_batch(columns)
        assert client.info()["replay"].size == 9000


def test_checkpoints_are_made_where_the_server_says(store, tmp_path):
    with Server(Table(store), checkpoints=tmp_path / "saved") as server, Client(server.address) as client:
        write_ten(client)
        (path,) = client.checkpoint("first")
        assert path == str(tmp_path / "saved" / "first")
        assert Table.restore(path).size == 10
    with Server(Table(store)) as server, Client(server.address) as client:
        with pytest.raises(TableError, match="makes no checkpoints"):
            client.checkpoint("first")


def test_values_are_the_latest(served):
    _, client = served
    assert client.latest("weights") is None
    first = client.publish("weights", {"w": np.arange(3.0)}, step=1)
    second = client.publish("weights", {"w": np.arange(4.0), "b": np.ones((2, 2), np.float16)}, step=2)
    assert second > first
    version, arrays, about = client.latest("weights", newer_than=first)
    assert (version, about) == (second, {"step": 2})
    assert arrays["w"].tolist() == [0, 1, 2, 3] and arrays["b"].dtype == np.float16
    assert client.latest("weights", newer_than=second) is None
    with pytest.raises(TableError, match="numbers or bools"):
        client.publish("weights", {"w": np.array(["text"])})


def test_values_have_a_bound(store):
    with Server(Table(store), limits=Limits(value_bytes=10_000)) as server, Client(server.address) as client:
        client.publish("a", {"w": np.zeros(1000)})
        client.publish("a", {"w": np.zeros(1000)})
        with pytest.raises(ServiceError, match="value_bytes"):
            client.publish("b", {"w": np.zeros(1000)})


def test_tables_are_changed_from_afar(store):
    with Server(Table(store, sampler="prioritized")) as server, Client(server.address) as client:
        write_ten(client)
        with client.loader({"number": "number"}, batch_size=4) as loader:
            keys = next(loader)["table.key"]
        assert client.update_priorities("replay", keys, np.ones(4)) == 4
        assert client.mutate("replay", updates={int(keys[0]): 2.0}, deletes=keys[1:2]) in (1, 2)
        with pytest.raises(TableError, match="priority"):
            client.update_priorities("replay", keys, -np.ones(4))
        client.reset("replay")
        assert client.info()["replay"].size == 0


def test_streams_have_a_bound(store):
    with Server(Table(store), limits=Limits(max_streams=2)) as server:
        with Client(server.address, timeout=5) as client, client.writer(timeout=1) as one:
            one.append(obs=[0, 0, 0], number=0, actor=0)
            one.flush()
            assert len(client.stats()[0]["writers"]) == 1
            with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED"), client.writer("b", timeout=5) as two:
                with client.writer("c", timeout=5) as three:
                    for writer in (two, three):
                        writer.append(obs=[0, 0, 0], number=0, actor=0)
                        writer.flush()


def test_metrics(store):
    prometheus = pytest.importorskip("prometheus_client.parser")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Server(Table(store), metrics=f"127.0.0.1:{port}") as server, Client(server.address) as client:
        write_ten(client)
        client.info()
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    found = {
        (sample.name, sample.labels.get("table")): sample.value
        for family in prometheus.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["stepwell_inserts_total", "replay"] == 10
    assert found["stepwell_items", "replay"] == 10
    assert found["stepwell_connected_loaders", None] == 0
    # a counter: it does not fall when a writer leaves
    assert found["stepwell_steps_total", None] == 10


def test_stats_are_read_while_values_come(store):
    interval = sys.getswitchinterval()
    with Server(Table(store)) as server, Client(server.address) as client, ThreadPoolExecutor(1) as pool:
        sys.setswitchinterval(1e-6)
        try:
            publishing = pool.submit(lambda: [client.publish(f"value{number}", {"w": number}) for number in range(300)])
            while not publishing.done():
                server.stats()
        finally:
            sys.setswitchinterval(interval)
        publishing.result()
        assert len(server.stats()["values"]) == 300


def test_table_specifications():
    name, options = parse_table("a:sampler=prioritized(0.5),limiter=SampleToInsertRatio(2.0,10,30),length=3,every=2")
    assert name == "a"
    assert options["pattern"] == Pattern(3, every=2)
    assert options["limiter"] == SampleToInsertRatio(2.0, 10, 30)
    assert parse_table("b") == ("b", {})
    for text, allowed in (
        ("a:x", "sampler=, remover="),
        ("a:x=1", "sampler=, remover="),
        ("a:max_size=x", "a whole number"),
        ("a:limiter=__import__('os')", "MinSize"),
        ("a:limiter=MinSize(x)", "MinSize"),
        ("a:limiter=MinSize()", "SampleToInsertRatio"),
        ("a:limiter=MinSize(1,2,3)", "SampleToInsertRatio"),
        ("a:limiter=MinSize(0)", "at least 1"),
    ):
        with pytest.raises(StepwellError, match=f"--table.*{allowed}"):
            parse_table(text)


def printed(before, now, width=80):
    from rich.console import Console

    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(make_screen(before, now))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_top_shows_rates_and_what_waits(store):
    limiter = SampleToInsertRatio(2.0, 10, 100.0)
    with Server(Table(store, "recent", limiter=limiter)) as server, Client(server.address) as client:
        with client.writer("actor") as writer, client.loader(batch_size=8, in_flight=1) as loader:
            writer.append(obs=[0, 0, 0], number=0, actor=0)
            writer.flush()
            before = Look(0.0, {"one:1": server.stats(), "other:1": {"error": "other:1: UNAVAILABLE: gone"}})
            for number in range(1, 41):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
            writer.flush()
            next(loader)
            now = Look(2.0, {"one:1": server.stats(), "other:1": {"error": "other:1: UNAVAILABLE: gone"}})
    lines = printed(before, now)
    assert lines[0].startswith("one:1  ")
    (table,) = (line for line in lines if line.startswith("  recent"))
    # the newest step is none yet, as its next observation is not known; 40 items in these 2 seconds
    assert table.split()[:5] == ["recent", "40", "of", "1,000,000", "20"]
    assert "SampleToInsertRati" in table
    (actor,) = (line for line in lines if line.startswith("  actor"))
    assert actor.split() == ["actor", "41", "20", "0", "connected"]
    assert lines[-3:] == ["other:1  away", "  UNAVAILABLE: gone", ""]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_top_cuts_no_number(store, width):
    with Server(Table(store, limiter=SampleToInsertRatio(2.0, 1000, 100_000.0))) as server:
        stats = server.stats()
    for number in range(30):
        stats["writers"].append({
            "name": f"actor-{number}", "steps": 12_345_678, "episodes": 123_456, "is_connected": number != 3,
            "held_seconds": 75.0 if number == 29 else 0.0,
        })  # fmt: skip
    lines = printed(Look(0.0, {"a:1": stats}), Look(1.0, {"a:1": stats}), width)
    assert "…" not in "".join(lines)
    assert any("1,000,000" in line for line in lines)
    rows = [line for line in lines if "12,345,678" in line]
    # 20 of them: those that wait first, those that are away last
    assert len(rows) == 20
    assert "actor-29" in rows[0] and "held" in rows[0]
    assert any("and 10 more" in line for line in lines)
    assert not any("actor-3 " in line for line in rows)


@pytest.mark.parametrize("kind", ["writer", "loader"])
def test_a_server_that_stops_prints_nothing_of_its_streams(tmp_path, kind):
    path = tmp_path / "run.well"
    stepwell.create(path, {"x": Array(2)}, capacity=1000)
    command = [sys.executable, "-m", "stepwell", "serve", str(path), "--address", "127.0.0.1:0"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = served.stdout.readline().split()[0]
        with Client(address, local=False, timeout=1) as client:
            writer = client.writer(timeout=1)
            for t in range(3):
                writer.append(x=[t, 0])
            writer.flush()
            loader = client.loader(batch_size=4, timeout=20)
            next(loader)
            if kind == "writer":
                loader.close()
            else:
                writer.close()
            served.send_signal(signal.SIGINT)
            _, printed_lines = served.communicate(timeout=30)
            loader.close()
            with suppress(ServiceError):
                writer.close()
    finally:
        served.kill()
        served.wait()
    assert served.returncode == 0
    assert "Traceback" not in printed_lines


def test_top_of_servers_that_are_away(served, tmp_path, capsys):
    server, _ = served
    away = f"unix:{tmp_path}/none"
    assert main(["top", away, "--once"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err
    assert main(["top", server.address, away, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "replay" in found[server.address]["tables"]
    assert "UNAVAILABLE" in found[away]["error"]
    assert main(["top", server.address, "--once", "--token-file", str(tmp_path / "none")]) == 1
    assert "Give a file that holds the token" in capsys.readouterr().err


def test_the_command_serves_until_it_is_told_to_stop(tmp_path, capsys):
    path = tmp_path / "run.well"
    stepwell.create(path, {"x": Array(2)}, capacity=1000)
    token = tmp_path / "token"
    token.write_text("secret\n")
    command = [sys.executable, "-m", "stepwell", "serve", str(path), "--address", "127.0.0.1:0"]
    command += [
        "--table",
        "replay:sampler=prioritized(0.6)",
        "--table",
        "recent:max_size=5",
        "--token-file",
        str(token),
    ]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = served.stdout.readline().split()[0]
        with Client(address, token="secret") as client, client.writer("actor-1") as writer:
            for t in range(20):
                writer.append(x=[t, t])
            writer.end_episode()
            writer.flush()
            with client.loader({"x": "x"}, tables="replay", batch_size=4) as loader:
                next(loader)
                assert main(["top", address, "--token-file", str(token), "--once"]) == 0
                text = capsys.readouterr().out
                for word in ("replay", "recent", "actor-1", "20", "connected", "local"):
                    assert word in text
                assert main(["top", address, "--token-file", str(token), "--json"]) == 0
                assert json.loads(capsys.readouterr().out)[address]["tables"]["recent"]["size"] == 5
        served.send_signal(signal.SIGTERM)
        out, _ = served.communicate(timeout=30)
        assert "saved" in out
        assert served.returncode == 0
    finally:
        served.kill()
        served.wait()
    assert sorted(each.name for each in (path / "service").glob("*.table")) == ["recent.table", "replay.table"]
