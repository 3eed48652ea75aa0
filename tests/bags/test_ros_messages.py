"""Messages of ROS are read as rosbags writes them; what strangers wrote gives errors, and runs nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.bags.message_log import unpacked
from stepwell.bags.ros_messages import MessageReader, parse_definitions
from stepwell.errors import DecodeError, FormatError

NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "bool")
FIELDS = st.lists(
    st.tuples(st.sampled_from([*NUMBERS, "string", "Inner"]), st.sampled_from(["", "[]", "[3]", "[<=5]"])),
    min_size=1,
    max_size=8,
)


def values_of(kind: str, array: str, rng: np.random.Generator, inner: object) -> object:
    """Return what a field of this type may hold."""
    count = None if not array else 3 if array == "[3]" else int(rng.integers(0, 5))
    if kind in NUMBERS:
        found = rng.integers(0, 100, count or (0 if count == 0 else 1)).astype(kind)
        return found[0].item() if count is None else found
    one = (lambda: "é" * int(rng.integers(0, 4))) if kind == "string" else (lambda: inner)
    return one() if count is None else [one() for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(outer=FIELDS, within=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_messages_are_read_as_rosbags_writes_them(outer, within, seed: int) -> None:
    pytest.importorskip("rosbags")
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    lines = [f"{kind}{array} f{number}" for number, (kind, array) in enumerate(outer)]
    inner_text = "\n".join(f"{kind} g{number}" for number, kind in enumerate(within))
    main = "int8 LIMIT=7\n" + "\n".join(lines) + "  # a comment\n"
    store = get_typestore(Stores.EMPTY)
    store.register({**get_types_from_msg(main, "demo/msg/Outer"), **get_types_from_msg(inner_text, "demo/msg/Inner")})
    rng = np.random.default_rng(seed)
    numbers = {f"g{number}": values_of(kind, "", rng, None) for number, kind in enumerate(within)}
    inner = store.types["demo/msg/Inner"](**numbers)
    fields = {f"f{number}": values_of(*field, rng, inner) for number, field in enumerate(outer)}
    message = store.types["demo/msg/Outer"](**fields)
    text = f"{main}\n{'=' * 80}\nMSG: demo/Inner\n{inner_text}"
    for is_cdr, data in (
        (True, store.serialize_cdr(message, "demo/msg/Outer")),
        (True, store.serialize_cdr(message, "demo/msg/Outer", little_endian=False)),
        (False, store.serialize_ros1(message, "demo/msg/Outer")),
    ):
        reader = MessageReader("demo/msg/Outer", text, is_cdr=is_cdr)
        found = reader.read(bytes(data))
        for name, wanted in fields.items():
            as_dicts = [numbers] * len(wanted) if isinstance(wanted, list) and inner in wanted else wanted
            np.testing.assert_equal(found[name], numbers if wanted is inner else as_dicts)
        for size in range(0, len(data) - 8, 7):
            with pytest.raises(DecodeError):
                reader.read(bytes(data)[:size])


def test_times_of_ros_1_and_headers() -> None:
    text = (
        "Header header\nduration left\n" + "=" * 80 + "\nMSG: std_msgs/Header\nuint32 seq\ntime stamp\nstring frame_id"
    )
    data = b"\1\0\0\0\5\0\0\0\7\0\0\0\2\0\0\0hi\xff\xff\xff\xff\0\0\0\0"
    found = MessageReader("demo/T", text, is_cdr=False).read(data)
    assert found["header"] == {"seq": 1, "stamp": {"sec": 5, "nanosec": 7}, "frame_id": "hi"}
    assert found["left"] == {"sec": -1, "nanosec": 0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("__import__('os').system('x')", r"Allowed: TYPE NAME"),
        ("int32 x;import os", None),
        ("Part x", r"demo/T > demo/Part: the definition of this type is missing"),
        ("T again", r"demo/T > demo/T: a type that holds itself"),
        ("int8 x\n====\nno name", r"'no name' in its definition. Allowed: MSG:"),
        ("int8 x\n" * 10_001, r"10001 fields"),
        ("#" * (1 << 21), r"a definition of 2,097,152 characters"),
    ],
)
def test_definitions_are_interpreted_and_never_run(text: str, told: str | None) -> None:
    if told is None:
        assert parse_definitions("demo/T", text)["demo/T"] == (("x", "int32", None),)
        return
    with pytest.raises(FormatError, match=told):
        parse_definitions("demo/T", text)


def layered(number: int, *leaves: str) -> str:
    """Return definitions in which each type holds two that hold the same two, down to the leaves."""
    pairs = [(f"demo/{kind}{i}", f"demo/A{i + 1} a\ndemo/B{i + 1} b\n") for i in range(number) for kind in "AB"]
    last = [(f"demo/{kind}{number}", "\n".join(leaves)) for kind in "AB"]
    others = "".join(f"====\nMSG: {name}\n{text}\n" for name, text in pairs + last)
    return f"demo/A0 a\ndemo/B0 b\n{others}"


def test_types_that_many_hold_are_looked_into_once() -> None:
    assert len(parse_definitions("demo/T", layered(25, "int8 x"))) == 2 + 1 + 2 * 26
    with pytest.raises(FormatError, match="lies 32 deep"):
        parse_definitions("demo/T", layered(40, "int8 x"))


def test_messages_of_more_fields_than_bytes_are_refused() -> None:
    with pytest.raises(DecodeError, match="0 bytes, which has more than"):
        MessageReader("demo/T", layered(25), is_cdr=False).read(b"")
    assert len(MessageReader("demo/T", layered(5, "int8 x"), is_cdr=False).read(bytes(64))) == 2


def test_counts_that_a_message_merely_claims_take_no_memory() -> None:
    for text, data in (
        ("uint8[] x", b"\xff\xff\xff\xff"),
        ("string[] x", b"\xff\xff\xff\xff"),
        ("string x", b"\xff\xff\xff\x7f"),
    ):
        with pytest.raises(DecodeError):
            MessageReader("demo/T", text, is_cdr=False).read(data)
    with pytest.raises(DecodeError, match=r"begins with b'\\x00\\x07"):
        MessageReader("demo/T", "int8 x", is_cdr=True).read(b"\0\7\0\0\1")


@pytest.mark.parametrize("compression", ["zstd", "lz4", "bz2"])
def test_what_is_unpacked_is_bounded(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import bz2

    lz4 = pytest.importorskip("lz4.frame")
    zstandard = pytest.importorskip("zstandard")
    pack = {"zstd": zstandard.compress, "lz4": lz4.compress, "bz2": bz2.compress}[compression]
    plain = bytes(range(256)) * 40
    assert unpacked(pack(plain), compression, len(plain), "chunk") == plain
    assert unpacked(pack(b""), compression, 0, "chunk") == b""
    if compression != "zstd":
        assert unpacked(pack(plain), compression, None, "chunk") == plain
    for claimed in (len(plain) - 1, len(plain) + 1):
        with pytest.raises(FormatError):
            unpacked(pack(plain), compression, claimed, "chunk")
    with pytest.raises(FormatError):
        unpacked(pack(plain)[:-9], compression, len(plain), "chunk")
    monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 MB")
    with pytest.raises(FormatError, match="STEPWELL_MAX_ROW_BYTES"):
        unpacked(pack(bytes(10_000_000)), compression, 10_000_000, "chunk")
    if compression != "zstd":
        with pytest.raises(FormatError, match="STEPWELL_MAX_ROW_BYTES"):
            unpacked(pack(bytes(10_000_000)), compression, None, "chunk")
