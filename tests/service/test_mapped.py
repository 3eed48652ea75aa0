"""Clients of the same host read the store's files: the same batches, at places that are checked."""

import asyncio
import gc
import json
import socket
import threading
import time

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Image, ReplayLoader, Table, Text, Video
from stepwell.errors import LoaderError, ServiceError
from stepwell.kernels.places import HI_FINAL, HI_STEP, LO, ROW, SEGMENT
from stepwell.replay import MinSize, Pattern, SampleToInsertRatio
from stepwell.service import Client, Server
from stepwell.service.local import NAME, Door, LocalCall, find_local, this_boot
from stepwell.service.mapping import MappedStore, place_columns
from stepwell.service.messages import Kind, unpack
from stepwell.windows.sources import JoinedSources

RNG = np.random.default_rng(0)
ENDINGS = {
    "last": Field("is_last", [-1, 0, 1, 2]),
    "first": Field("is_first", [-3, 0, 2], pad="zero"),
    "end": "terminated",
    "cut": Field("truncated", [0, 3]),
    "time": Field("timestamp", [-40, 0, 1]),
    "index": Field("step_index", [-2, 0, 1]),
}
# over a socket of this host, over gRPC with places, and with rows
WAYS = ["socket", "places over gRPC", "rows over gRPC"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """How batches come: returns what `Client` is given for it."""
    if request.param == "places over gRPC":

        def refuse(self, *_):
            raise ConnectionRefusedError

        monkeypatch.setattr(LocalCall, "__init__", refuse)
    return {"local": request.param != "rows over gRPC"}


def compare(near, far, batches=6, updates=True):
    for number in range(batches):
        one, other = next(near), next(far)
        assert list(one) == list(other)
        for key in one:
            assert one[key].dtype == other[key].dtype, key
            np.testing.assert_array_equal(one[key], other[key], err_msg=f"{key} of batch {number}")
        if updates:
            priorities = RNG.random(len(one["table.key"]))
            near.update_priorities(one, priorities)
            far.update_priorities(other, priorities)


AHEAD = Pattern(1, ahead=3)


def check(store, fields, way, *, pattern=AHEAD, table=None, batches=6, **options):
    """Compare batches of a table in this process with those of a table that is served."""
    settings = {"sampler": "prioritized", "seed": 7, "pattern": pattern, **(table or {})}
    options = {"batch_size": 16, "seed": 3, **options}
    near = ReplayLoader(Table(store, **settings), fields, **options)
    with Server(Table(store, **settings)) as server, Client(server.address, **way) as client:
        with client.loader(fields, in_flight=1, **options) as far:
            compare(near, far, batches, updates=not options.get("threads"))


def test_raw_features_and_computed_columns(way):
    schema = {"obs": Array(3, final=True), "number": Array((), "int64"), "actor": Array((), "int64")}
    store = stepwell.create(":memory:", schema, fps=20, capacity=100_000)
    fill(store)
    fields = {
        "obs": [0, 1, 2],
        "number": Field("number", [-2, 0, 3], pad="zero"),
        "both": Field(("number", "actor"), combine="stack"),
        "is_last": "is_last",
        "step_index": Field("step_index", [-1, 0]),
        "episode_index": "episode_index",
        "later": Field("number", at="final"),
    }
    check(store, fields, way)
    check(store, {"obs": [0, 1], **ENDINGS}, way)
    check(store, {"number": [0, 1], **ENDINGS}, way, pattern=Pattern(3), clip="item")
    check(store, ENDINGS, way)
    check(store, {"obs": [0, 1], "actor": "actor"}, way, threads=2)
    check(store, {"number": [-1, 0, 1, 2]}, way, pattern=Pattern(2), clip="item")
    check(store, {"number": "number"}, way, info=["key"])


def fill(store, episodes=6, steps=30):
    with store.writer() as writer:
        for number in range(episodes):
            for t in range(steps):
                writer.append(obs=RNG.random(3, np.float32), number=100 * number + t, actor=number)
            writer.end_episode(terminated=number % 2 == 0, final={"obs": RNG.random(3, np.float32)})


def test_transitions(store, way):
    fill(store)
    targets = stepwell.transition_fields({"obs": "obs"}, action="actor", reward="number", n_step=3)
    check(store, targets.fields, way, pattern=targets.pattern, transform=targets.transform)
    targets = stepwell.transition_fields({"obs": "obs"}, action="actor", reward="number", stack=4)
    check(store, targets.fields, way, pattern=targets.pattern, transform=targets.transform)


class Half(stepwell.codecs.Decoder):
    """Every second pixel, from a drawn one on."""

    is_random = True

    def output(self, feature):
        return (feature.shape[0] // 2, feature.shape[1] // 2, feature.shape[2]), np.dtype(np.uint8)

    def draw(self, feature, draws):
        return draws.integers(0, 2)

    def convert(self, pixels, out, draw):
        out[...] = pixels[int(draw) :: 2, ::2]


@pytest.mark.parametrize("codec", ["png", "jpeg", "zstd", "delta"])
@pytest.mark.parametrize("threads", [0, 2])
def test_images_and_texts(tmp_path, way, codec, threads):
    schema = {"image": Image((16, 16, 3), codec=codec), "note": Text(), "x": Array(2)}
    store = stepwell.create(tmp_path / "a.well", schema)
    with store.writer() as writer:
        for number in range(4):
            for t in range(12):
                image = RNG.integers(0, 255, (16, 16, 3), np.uint8)
                writer.append(image=image, note=f"{number} {t}", x=np.full(2, t, np.float32))
            writer.end_episode()
    fields = {
        "image": [-1, 0],
        "next": Field("image", [0, 1], pad="zero"),
        "small": Field("image", decoder=Half()),
        "note": [0, 1],
        "x": "x",
    }
    check(store, fields, way, threads=threads, batches=3)


def test_video(tmp_path, way):
    pytest.importorskip("av")
    store = stepwell.create(tmp_path / "a.well", {"camera": Video((32, 32, 3)), "x": Array()}, fps=10)
    with store.writer() as writer:
        for number in range(2):
            for t in range(20):
                writer.append(camera=np.full((32, 32, 3), 10 * t + number, np.uint8), x=t)
            writer.end_episode()
    check(store, {"camera": [-2, 0], "x": [0, 1]}, way, batches=3)


def test_stacks_and_windows_over_the_pieces_of_a_ring(tmp_path, way):
    schema = {"screen": Array((8, 8), "uint8", final=True), "note": Text(), "number": Array((), "int64")}
    store = stepwell.create(tmp_path / "a.well", schema, fps=10, capacity=3000, segment_bytes=1 << 14)
    with store.writer() as writer:
        for t in range(2500):
            writer.append(screen=np.full((8, 8), t % 251, np.uint8), note=str(t), number=t)
            if t in (300, 900, 1700, 1712):
                writer.end_episode(terminated=t != 1700, final={"screen": np.zeros((8, 8), np.uint8)})
    store.refresh()
    assert any(store.episodes.goes_on)
    fields = {
        "screen": list(range(-40, 4)),
        "number": Field("number", [-30, 0, 3], pad="zero"),
        "note": [-20, 0, 1],
        "step_id": Field("step_id", [-5, 0]),
        **ENDINGS,
    }
    check(store, fields, way, batch_size=64)
    check(store, fields, way, batch_size=64, pattern=Pattern(30), clip="item")
    # of episodes that end in another piece
    far = {**ENDINGS, "far": Field("is_last", list(range(-600, 600)))}
    check(store, far, way, batch_size=512, pattern=Pattern(1, ahead=599))


def test_vector_steps(tmp_path, way):
    store = stepwell.create(tmp_path / "a.well", {"x": Array(3, final=True), "n": Array((), "int64")}, capacity=600)
    with store.vector_writer(4) as writer:
        for t in range(100):
            ends = np.array([t % 7 == 6, t % 50 == 49, False, False])
            x = np.full((4, 3), t, np.float32)
            writer.append({"x": x, "n": np.arange(4) + 10 * t}, terminated=ends, final={"x": x + 0.5})
        fields = {"x": [-3, 0, 1], "n": [-2, 0, 1]}
        # also while more rows are written
        settings = {"sampler": "uniform", "seed": 7, "pattern": Pattern(1, ahead=1)}
        near = ReplayLoader(Table(store, **settings), fields, batch_size=32)
        with Server(Table(store, **settings)) as server, Client(server.address, **way) as client:
            with client.loader(fields, batch_size=32, in_flight=1) as far:
                for t in range(100, 140):
                    x = np.full((4, 3), t, np.float32)
                    writer.append({"x": x, "n": np.arange(4) + 10 * t})
                    compare(near, far, 1, updates=False)


def test_a_ring_that_goes_round(tmp_path, way):
    schema = {"x": Array(8), "n": Array((), "int64")}
    store = stepwell.create(tmp_path / "a.well", schema, capacity=500, segment_bytes=1 << 12)
    with store.writer() as writer:
        number = 0
        with Server(Table(store, sampler="uniform")) as server, Client(server.address, **way) as client:
            writer.append(x=np.zeros(8, np.float32), n=0)
            with client.loader({"n": "n", "x": "x"}, batch_size=32, in_flight=4) as loader:
                for _ in range(40):
                    for _ in range(150):
                        number += 1
                        writer.append(x=np.full(8, number % 1000, np.float32), n=number)
                        if number % 60 == 0:
                            writer.end_episode()
                    batch = next(loader)
                    np.testing.assert_array_equal(batch["x"], np.repeat((batch["n"] % 1000)[:, None], 8, 1))
        assert number - batch["n"].min() < 500 + 5 * 150


def test_tables_and_servers_side_by_side(tmp_path):
    stores = [stepwell.create(tmp_path / f"{n}.well", {"n": Array((), "int64")}) for n in range(2)]
    servers = []
    for number, store in enumerate(stores):
        with store.writer() as writer:
            for t in range(50):
                writer.append(n=1000 * number + t)
        servers.append(Server([Table(store, "one"), Table(store, "two")]))
    try:
        with Client([server.address for server in servers], local=True) as client:
            with client.loader({"n": "n", "is_last": "is_last"}, tables={"one": 1, "two": 1}, batch_size=64) as loader:
                for _ in range(5):
                    batch = next(loader)
                    assert set((batch["n"] // 1000).tolist()) == {0, 1}
                    shards = batch["table.shard"] % 2
                    np.testing.assert_array_equal(batch["n"] // 1000, shards)
    finally:
        for server in servers:
            server.stop()


def test_unix_sockets(store, tmp_path, way):
    fill(store)
    near = ReplayLoader(Table(store, seed=7), {"obs": "obs"}, batch_size=8)
    with Server(Table(store, seed=7), f"unix:{tmp_path}/s") as server, Client(server.address, **way) as client:
        with client.loader({"obs": "obs"}, batch_size=8, in_flight=1) as far:
            compare(near, far, 3)


def test_messages_that_are_larger_than_a_buffer(way):
    store = stepwell.create(":memory:", {"wide": Array(3000)}, capacity=1000)
    with store.writer() as writer:
        for t in range(60):
            writer.append(wide=np.full(3000, t, np.float32))
            if t % 20 == 19:
                writer.end_episode()
    # the server reads where windows are put elsewhere
    check(store, {"wide": "wide", "end": Field("wide", at="final")}, way, batch_size=64, batches=3)


def test_several_small_batches_are_drawn_and_read_together(store, way):
    fill(store)
    table = Table(store, sampler="prioritized", limiter=MinSize(10))
    with Server(table) as server, Client(server.address, **way) as client:
        options = {"batch_size": 8, "in_flight": 6, "beta": 1.0, "normalize": False}
        with client.loader({"number": "number", "obs": [0, 1]}, **options) as loader:
            for number in range(20):
                batch = next(loader)
                assert batch["obs"].shape == (8, 2, 3)
                assert loader.num_batches == number + 1
                expected = 1 / (batch["table.size"] * batch["table.probability"])
                np.testing.assert_allclose(batch["table.weight"], expected, rtol=1e-5)
                loader.update_priorities(batch, 1.0 + batch["number"] % 3)
            (about,) = client.stats()[0]["loaders"]
            assert about["rows"] == 8 * about["batches"] and 20 <= about["batches"] <= 20 + 6


def test_a_limiter_that_lets_fewer_batches_through(store, way):
    table = Table(store, limiter=SampleToInsertRatio(1.0, min_size=1, error_buffer=10.0))
    with Server(table) as server, Client(server.address, **way) as client:
        with client.writer() as writer, client.loader({"number": "number"}, batch_size=8, timeout=60) as loader:
            for number in range(8):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
            writer.flush()
            # two batches at a time would be more than the limiter lets be drawn of 8 items
            assert len(next(loader)["number"]) == 8


def test_a_server_that_is_begun_again_is_found(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"n": Array((), "int64")})
    with store.writer() as writer:
        for t in range(50):
            writer.append(n=t)
    server = Server(Table(store))
    with Client(server.address, local=True) as client, client.loader({"n": "n"}, batch_size=8) as loader:
        next(loader)
        server.stop()
        server = Server(Table(store), server.address)
        try:
            for _ in range(8):
                assert set(next(loader)["n"].tolist()) <= set(range(50))
        finally:
            server.stop()


def test_a_server_that_dies_before_it_answers_is_tried_again(store):
    fill(store)
    with Server(Table(store)) as server, Client(server.address, local=True) as client:
        enter, lines = server._service.door.serve, []

        async def leave(name, token, line):
            lines.append(line)
            # the first one ends at once
            if len(lines) > 1:
                await enter(name, token, line)

        server._service.door.serve = leave
        with client.loader({"number": "number"}, batch_size=8) as loader:
            assert len(next(loader)["number"]) == 8
        assert len(lines) == 2


def test_a_token_is_asked_for_at_the_socket_too(store):
    fill(store)
    with Server(Table(store), token="secret") as server:
        with Client(server.address, token="secret", local=True) as client:
            with client.loader({"obs": "obs"}) as loader:
                next(loader)
            about = client.connections[0].call("describe", {"boot": this_boot()}, timeout=60).head
            host = find_local(about["here"])
        call = LocalCall(host, "draw", "other")
        with pytest.raises(ServiceError, match="token that came is not the one"):
            unpacked(call)
        call.cancel()
        call = LocalCall(host._replace(secret="x"), "draw", "secret")
        with pytest.raises(ServiceError, match="another secret"):
            unpacked(call)
        call.cancel()
        call = LocalCall(host, "call", "secret")
        with pytest.raises(ServiceError, match="'call'"):
            unpacked(call)
        call.cancel()


def unpacked(call):
    return unpack(next(call), Kind.WELCOME)


@pytest.mark.parametrize(
    "frames",
    [
        b"\xff\xff\xff\xff" + bytes(100),
        b"\x05\x00\x00\x00hello",
        b"\x00\x00\x00\x00",
        b"\x10",
        b"\x10\x00\x00\x00" + bytes(16),
        b"",
    ],
)
def test_what_is_no_message_ends_its_connection_alone(store, frames):
    fill(store)
    with Server(Table(store)) as server, Client(server.address, local=True) as client:
        name = json.loads((store.path / "service" / "door").read_text())["name"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(60)
            other.connect(f"\0stepwell-{name}")
            other.sendall(frames)
            if len(frames) < 4:
                other.shutdown(socket.SHUT_WR)
            try:
                while other.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
        with client.loader({"number": "number"}, batch_size=8) as loader:
            assert len(next(loader)["number"]) == 8
        assert len(server._service.door.lines) <= 1


def test_a_loader_that_is_dropped_leaves_no_connection(store):
    fill(store)
    with Server(Table(store)) as server, Client(server.address, local=True) as client:
        loader = client.loader({"number": "number"}, batch_size=8)
        next(loader)
        del loader
        gc.collect()
        deadline = time.monotonic() + 60
        while server._service.door.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server._service.door.lines


def test_only_who_sees_the_same_files_maps_them(store, monkeypatch, tmp_path):
    fill(store)
    with Server(Table(store)) as server:
        with Client(server.address, local=True) as client, client.loader({"obs": "obs"}) as loader:
            assert "obs" in next(loader)
        # of another boot, a server says nothing of its files
        monkeypatch.setattr("stepwell.service.loading.this_boot", lambda: "00" * 16)
        with Client(server.address, local=True) as client:
            with pytest.raises(ServiceError, match="local=True"):
                client.loader({"obs": "obs"})
        with Client(server.address) as client, client.loader({"obs": "obs"}) as loader:
            assert loader._streams[0][0].mapped is None
            next(loader)
    # a container of the same boot has another directory of that path, or none
    found = {"path": str(tmp_path), "proof": "0" * 64}
    assert find_local(found) is None
    (tmp_path / "service").mkdir()
    for text in ("", "[]", '{"secret": 3, "name": "x"}', '{"secret": "x", "name": "x"}'):
        (tmp_path / "service" / "door").write_text(text)
        assert find_local(found) is None
    for record in (None, [], {"path": "a", "proof": "b"}, {"path": "/a\0b", "proof": "b"}, {"path": 3, "proof": "b"}):
        assert find_local(record) is None


def test_the_door_is_closed_with_its_server(store):
    with Server(Table(store)):
        door = store.path / "service" / "door"
        assert door.stat().st_mode & 0o777 == 0o600
    assert not door.exists()
    assert Door(str(store.path), 1, 1, None).describe(this_boot()) is None


def test_who_comes_in_as_the_door_closes_is_turned_away(store):
    (store.path / "service").mkdir()

    async def come_and_close():
        door = Door(str(store.path), 1, 1, None)
        await door.open()
        found = find_local(door.describe(this_boot()))
        with socket.socket(socket.AF_UNIX) as guest:
            guest.settimeout(10)
            guest.connect(NAME.format(found.name))
            # the loop accepts the connection in this turn, and makes its transport in the next one
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            door.close()
            return await asyncio.to_thread(guest.recv, 1), door.lines

    assert asyncio.run(come_and_close()) == (b"", set())


# what a server may say


def mapped_with_rows(tmp_path, rows=20):
    store = stepwell.create(tmp_path / "a.well", {"n": Array((), "int64")})
    with store.writer() as writer:
        for t in range(rows):
            writer.append(n=t)
        writer.end_episode()
    segment = store.segments[0]
    mapped = MappedStore(str(store.path), store.uuid)
    mapped.take_in({"segments": [[segment.ordinal, segment.name]]})
    places = np.zeros((6, 4), np.int64)
    places[SEGMENT] = segment.ordinal
    places[ROW], places[HI_STEP], places[HI_FINAL] = [0, 3, 7, 19], rows, rows
    return mapped, places


def test_places_beyond_what_is_stored_are_refused(tmp_path):
    mapped, places = mapped_with_rows(tmp_path)
    found, chained = mapped.checked({"places:": places}, 4, (0, 0))
    assert chained is None and found[SEGMENT].tolist() == [0] * 4
    for row, value in [
        (SEGMENT, 99),
        (SEGMENT, -1),
        (ROW, -1),
        (ROW, 20),
        (LO, -1),
        (LO, 8),
        (HI_STEP, 21),
        (HI_FINAL, 21),
        (HI_FINAL, 1 << 60),
        (HI_FINAL, 19),
    ]:
        wrong = places.copy()
        wrong[row, 2] = value
        with pytest.raises(ServiceError, match="beyond what is stored"):
            mapped.checked({"places:": wrong}, 4, (0, 0))
    for wrong in (places[:5], places.astype(np.int32), places[:, :3]):
        with pytest.raises(ServiceError, match="without places of 4 rows"):
            mapped.checked({"places:": wrong}, 4, (0, 0))
    with pytest.raises(ServiceError, match="without places"):
        mapped.checked({}, 4, (0, 0))
    mapped.close()


def test_pieces_beyond_what_is_stored_are_refused(tmp_path):
    schema = {"n": Array((), "int64")}
    store = stepwell.create(tmp_path / "a.well", schema, capacity=3000, segment_bytes=1 << 11)
    with store.writer() as writer:
        for t in range(2000):
            writer.append(n=t)
    table = Table(store)
    history, reach = table.history, (-50, 1)
    table.follow()
    places = history.places(*history.find([history.segments[-2].ordinal << 32 | row for row in range(4)]))
    wide, _, chained = JoinedSources([history]).chained(places, (places,), *reach)
    assert chained is not None
    columns = place_columns(wide, chained, history.ordinals, reach)
    mapped = MappedStore(str(store.path), store.uuid)
    mapped.take_in({"segments": [[each.ordinal, each.name] for each in history.segments]})
    _, found = mapped.checked(columns, 4, reach)
    assert len(found.pieces) > 1
    good = {name: each.copy() for name, each in columns.items()}
    for name, at, value in [
        ("places:pieces", (0, 0), 1),
        ("places:pieces", (0, 1), 99),
        ("places:pieces", (0, 2), 1 << 31),
        ("places:pieces", (1, 2), 10_000),
        ("places:pieces", (0, 3), 1 << 31),
        ("places:pieces", (1, 3), 0),
        ("places:pieces", (-1, 0), 3),
        ("places:at", (0,), -1),
        ("places:at", (0,), 50),
        ("places:chosen", (0,), 4),
        ("places:chosen", (0,), -1),
        ("places:", (6, 0), -(1 << 50)),
        ("places:", (7, 0), 1 << 50),
        ("places:", (8, 0), 1 << 50),
    ]:
        wrong = {key: each.copy() for key, each in good.items()}
        wrong[name][at] = value
        with pytest.raises(ServiceError):
            mapped.checked(wrong, 4, reach)
    for name in ("places:at", "places:chosen", "places:pieces"):
        with pytest.raises(ServiceError):
            mapped.checked({**good, name: good[name][:0]}, 4, reach)
        with pytest.raises(ServiceError):
            mapped.checked({**good, name: good[name].astype(np.float64)}, 4, reach)
    # windows that reach further than the pieces that came
    with pytest.raises(ServiceError):
        mapped.checked(good, 4, (-1500, 1))
    mapped.close()


def test_segments_that_are_none_are_refused(tmp_path):
    mapped, places = mapped_with_rows(tmp_path)
    for head in (
        {"segments": [[0, "../../etc"]]},
        {"segments": [[1, "00000002-abcd"]]},
        {"segments": [[1, "00000001-abcd.open"]]},
        {"segments": [[1, 3]]},
        {"segments": [1]},
        {"segments": 3},
        {"gone": [77]},
        {"gone": ["x"]},
    ):
        with pytest.raises(ServiceError, match="none of a store's"):
            mapped.take_in(head)
    # one that is gone by now is no error until it is read
    mapped.take_in({"segments": [[5, "00000005-abcd"]]})
    places[SEGMENT] = 5
    with pytest.raises(LoaderError, match="segment 5 is gone"):
        mapped.checked({"places:": places}, 4, (0, 0))
    mapped.close()
    with pytest.raises(ServiceError, match="and the server has"):
        MappedStore(str(mapped.store.path), "other")


def test_a_batch_whose_rows_are_gone_is_drawn_again(store):
    fill(store)
    with Server(Table(store)) as server, Client(server.address, local=True) as client:
        with client.loader({"number": "number"}, batch_size=8, in_flight=3) as loader:
            next(loader)
            mapped = loader._streams[0][0].mapped
            checked, fails = mapped.store.checked, [True, False, True]

            def fail(*arguments):
                if fails and fails.pop(0):
                    raise mapped.store._gone(3)
                return checked(*arguments)

            mapped.store.checked = fail
            for _ in range(6):
                assert len(next(loader)["number"]) == 8
            assert not fails


def test_two_learners_draw_while_an_actor_writes(store):
    failed = []
    with Server(Table(store, sampler="prioritized")) as server, Client(server.address, local=True) as client:
        with client.writer() as writer:
            writer.append(obs=[0, 0, 0], number=0, actor=1)
            writer.flush()

            def learn():
                try:
                    with client.loader({"obs": "obs", "number": "number"}, batch_size=32) as loader:
                        for _ in range(60):
                            batch = next(loader)
                            np.testing.assert_array_equal(batch["obs"][:, 0], batch["number"] % 1000)
                            loader.update_priorities(batch, np.ones(32))
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=learn) for _ in range(2)]
            for thread in threads:
                thread.start()
            for number in range(3000):
                writer.append(obs=[number % 1000, 0, 0], number=number, actor=1)
                if number % 100 == 99:
                    writer.end_episode(final={"obs": [0, 0, 0]})
            for thread in threads:
                thread.join(60)
    assert not failed
