"""Memory of a server while clients send large messages: sizes are compared before memory is taken, and bounds hold."""

import multiprocessing
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array
from stepwell.service import Client, Limits, Server, open_table
from stepwell.service.fields import fields_to_json
from stepwell.service.host import LOOKAHEAD_BYTES
from stepwell.service.local import HELLO_BYTES, LENGTH, NAME, LocalCall, find_local, this_boot
from stepwell.service.messages import PROTOCOL, Kind, pack, unpack
from stepwell.service.settings import SERVICE, import_grpc

MIB = 1 << 20
ROW = 4 * MIB
NUM_CLIENTS = 4


def serve(path, ready, message_bytes):
    store = stepwell.create(path, {"x": Array(ROW, "uint8")}, capacity=64, segment_bytes="64 MiB")
    server = Server(open_table(store), limits=Limits(message_bytes=message_bytes, grace_seconds=0.1))
    ready.put(server.address)
    server.wait()


@pytest.fixture
def served(tmp_path, monkeypatch):
    # so that what is freed goes back to the system, and memory that is held is measured
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=serve, args=(tmp_path / "a.well", ready, 17 * MIB))
    process.start()
    try:
        yield process, ready.get(timeout=60)
    finally:
        process.kill()
        process.join()


def anonymous(process):
    (line,) = (each for each in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "RssAnon" in each)
    return int(line.split()[1]) * 1024


class Peak:
    """The largest anonymous memory of a process, above what it had at first."""

    def __init__(self, process):
        self._process, self._is_over = process, threading.Event()
        self._first = self.largest = anonymous(process)
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._is_over.wait(0.002):
            self.largest = max(self.largest, anonymous(self._process))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()
        self.rise = self.largest - self._first


def send_steps(address, number, count):
    """Send messages of 16 MiB, one after the other as fast as the server takes them."""
    columns, grpc = {"x": np.zeros((4, ROW), np.uint8)}, import_grpc()
    messages = [pack(Kind.HELLO, {"protocol": PROTOCOL, "name": f"writer-{number}", "incarnation": "1"})]
    for each in range(count):
        messages.append(pack(Kind.STEPS, {"first": [4 * each, 0, 0], "count": 4, "ack": True}, columns))
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/write")(iter(messages), timeout=120)
        unpack(next(stream), Kind.WELCOME)
        for each in range(count):
            position = unpack(next(stream), Kind.ACK).head["position"]
            assert position[0] >= 4 * (each + 1)
        stream.cancel()


def test_large_messages_of_several_clients_keep_the_stated_bound(served):
    process, address = served
    send_steps(address, 100, 1)
    with Peak(process) as peak, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for each in [pool.submit(send_steps, address, number, 6) for number in range(NUM_CLIENTS)]:
            each.result()
    # two messages a stream and what it reads ahead, two messages for the one that is being read: 100 to 180 MiB. Up to
    # 330 were taken when the windows of connections were as large as their speed asked for
    ahead = NUM_CLIENTS * LOOKAHEAD_BYTES
    assert peak.rise < (NUM_CLIENTS * 2 + 2) * 16 * MIB + ahead + 32 * MIB, peak.rise / MIB


def test_large_published_values_keep_the_stated_bound(served):
    process, address = served
    with Client(address) as client, Peak(process) as peak, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        values = {"w": np.zeros(16 * MIB, np.uint8)}
        for each in [pool.submit(client.publish, f"value-{number % 4}", values) for number in range(12)]:
            each.result()
        assert len(client.stats()[0]["values"]) == 4
    # three messages a call and two for the one that is being read, beside the 4 values that stay
    assert peak.rise < (4 + NUM_CLIENTS * 3 + 2) * 16 * MIB + 32 * MIB, peak.rise / MIB


def local_server(address):
    with Client(address) as client:
        about = client.connections[0].call("describe", {"boot": this_boot()}, timeout=60).head
    host = find_local(about["here"])
    if host is None:
        pytest.skip("this system has no such sockets")
    return host


def push(connection, data):
    """Send until the other side takes no more; return how many bytes it took."""
    connection.settimeout(0.3)
    sent = 0
    try:
        while sent < len(data):
            sent += connection.send(data[sent : sent + MIB])
    except OSError:
        pass
    return sent


def test_a_stranger_at_the_socket_has_no_memory_taken(served):
    process, address = served
    host = local_server(address)
    frame = LENGTH.pack(16 * MIB) + bytes(16 * MIB - 1)
    with Peak(process) as peak:
        connections = []
        for _ in range(8):
            connections.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connections[-1].connect(NAME.format(host.name))
        taken = sum(push(each, frame) for each in connections)
        time.sleep(0.1)
        for each in connections:
            each.close()
    assert taken < 8 * 2 * MIB
    assert peak.rise < 16 * MIB, peak.rise / MIB


def test_a_guest_at_the_socket_may_send_what_is_larger_at_once(served):
    _, address = served
    send_steps(address, 0, 1)
    host = local_server(address)
    call = LocalCall(host, "draw", None)
    # before the server has read the secret
    fields = fields_to_json({"x": stepwell.Field("x")})
    head = {"protocol": PROTOCOL, "table": "replay", "fields": fields, "word": "x" * (4 * HELLO_BYTES)}
    call.put(pack(Kind.HELLO, head))
    assert unpack(next(call), Kind.WELCOME).head["protocol"] == PROTOCOL
    call.cancel()


def test_messages_that_wait_at_the_socket_are_bounded(served):
    process, address = served
    host = local_server(address)
    large = pack(Kind.ASK, {"count": 1}, {"x": np.zeros(16 * MIB, np.uint8)})
    with Peak(process) as peak:
        call = LocalCall(host, "draw", None)
        # the first is no HELLO, and the connection ends with it; those that follow are not taken in before
        sent = push(call._socket, b"".join([LENGTH.pack(len(large)) + large] * 8))
        time.sleep(0.1)
        call.cancel()
    assert sent < 8 * 16 * MIB
    assert peak.rise < 2 * 16 * MIB + 24 * MIB, peak.rise / MIB
