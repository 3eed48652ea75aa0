"""tf.train.Example as bytes: every way that protobuf may write it, and bytes that are none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import FormatError
from stepwell.tfds.examples import ExampleKeys, encode_example


def varint(value):
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, data, wire=2):
    tag = varint(number << 3 | wire)
    return tag + varint(len(data)) + data if wire == 2 else tag + data


def entry(key, feature):
    return field(1, field(1, key.encode()) + field(2, feature))


def example(*entries):
    return field(1, b"".join(entries))


def found(blob, *keys):
    return ExampleKeys(keys).locate(np.frombuffer(blob, np.uint8))


LISTS = st.one_of(
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda values: np.array(values, np.float32)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda values: np.array(values, np.int64)),
)


@given(st.dictionaries(st.text(max_size=8), LISTS, max_size=6))
@settings(max_examples=60)
def test_what_was_encoded_is_read(features):
    read = found(encode_example(features), *features, "absent?")
    for key, values in features.items():
        if isinstance(values, list):
            assert read.strings(key) == values
        elif values.dtype == np.float32:
            assert read.floats(key).tobytes() == values.tobytes()
        else:
            assert read.ints(key).tolist() == values.tolist()
    assert read.kinds("absent?") == {"absent"}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"])
def test_integers_of_all_types_come_back(dtype):
    limits = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = np.array([*limits, 0, 1], dtype)
    read = found(encode_example({"x": values}), "x").ints("x", dtype)
    assert read.dtype == values.dtype
    assert read.tolist() == values.tolist()


def test_a_number_that_the_dtype_cannot_hold_is_refused():
    blob = encode_example({"x": np.array([0, 300])})
    with pytest.raises(FormatError, match=r"'x': the number at byte \d+ is none of uint8"):
        found(blob, "x").ints("x", np.uint8)
    assert found(blob, "x").ints("x", np.bool_).tolist() == [False, True]


def test_packed_and_single_values_may_be_mixed():
    floats = field(1, np.float32([1, 2]).tobytes()) + field(1, np.float32(3).tobytes(), wire=5)
    ints = field(1, varint(-1), wire=0) + field(1, varint(300) + varint(0)) + field(1, varint(7), wire=0)
    read = found(example(entry("f", field(2, floats)), entry("i", field(3, ints))), "f", "i")
    assert read.floats("f").tolist() == [1, 2, 3]
    assert read.ints("i").tolist() == [-1, 300, 0, 7]


def test_fields_may_come_in_any_order_and_unknown_ones_are_skipped():
    unknown = field(9, b"?") + field(10, varint(5), wire=0) + field(11, bytes(8), wire=1) + field(12, bytes(4), wire=5)
    feature = unknown + field(1, unknown + field(1, b"value") + unknown)
    value_first = field(1, unknown + field(2, feature) + unknown + field(1, b"key"))
    blob = unknown + field(1, unknown + value_first + unknown) + unknown
    assert found(blob, "key").strings("key") == [b"value"]


def test_of_a_key_that_comes_twice_the_last_one_counts():
    one, two = field(1, field(1, b"one")), field(1, field(1, b"two"))
    assert found(example(entry("k", one), entry("k", two)), "k").strings("k") == [b"two"]
    assert found(example(entry("k", one)) + example(entry("k", two)), "k").strings("k") == [b"two"]


def test_a_list_in_two_parts_is_refused_rather_than_read_by_half():
    feature = field(1, field(1, b"one")) + field(1, field(1, b"two"))
    with pytest.raises(FormatError, match="begins no part"):
        found(example(entry("k", feature)), "k")


def test_empty_features_and_examples_have_no_values():
    assert found(b"", "k").kinds("k") == {"absent"}
    read = found(example(entry("k", b""), entry("e", field(2, b""))), "k", "e")
    assert (read.kinds("k"), read.counts("e").tolist(), read.floats("e").size) == ({"absent"}, [0], 0)


def test_a_list_of_another_kind_is_refused():
    read = found(encode_example({"k": [b"x"]}), "k")
    with pytest.raises(FormatError, match=r"'k': a list of bytes\. By features\.json it is one of float"):
        read.floats("k")


def test_several_examples_are_read_at_once():
    blobs = [encode_example({"x": np.arange(n), "s": [b"a" * n] * n}) for n in (2, 0, 3)]
    stops = np.cumsum([len(blob) for blob in blobs])
    read = ExampleKeys(["s", "x"]).locate(np.frombuffer(b"".join(blobs), np.uint8), np.r_[0, stops[:-1]], stops)
    assert read.counts("x").tolist() == [2, 0, 3]
    assert read.ints("x").tolist() == [0, 1, 0, 1, 2]
    assert read.strings("s") == [b"aa", b"aa", b"aaa", b"aaa", b"aaa"]
    assert read.has("x").tolist() == [True, True, True]


def test_every_shortened_example_is_an_error_that_says_where():
    blob = encode_example({"x": np.arange(300), "s": [b"text"], "f": np.ones(3, np.float32)})
    for length in range(1, len(blob)):
        with pytest.raises(FormatError, match=r"byte \d+ begins no part"):
            found(blob[:length], "x", "s")


BAD = {
    "a length beyond the end": field(1, b"")[:1] + varint(2**62),
    "a negative length": b"\x0a" + varint(-5),
    "a varint of eleven bytes": b"\x0a" + b"\xff" * 11,
    "field number zero": b"\x02\x00",
    "a group": b"\x0b\x0c",
    "floats of seven bytes": example(entry("k", field(2, field(1, bytes(7))))),
    "a packed varint that does not end": example(entry("k", field(3, field(1, b"\x01\x80")))),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_bytes_are_refused(name):
    with pytest.raises(FormatError, match="begins no part"):
        found(BAD[name], "k")


def test_a_number_of_more_than_ten_bytes_within_a_list_is_refused():
    blob = example(entry("k", field(3, field(1, b"\x80" * 10 + b"\x01"))))
    with pytest.raises(FormatError, match="is none of int64"):
        found(blob, "k").ints("k")


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_an_example_or_an_error(data):
    try:
        read = found(data, "", "k")
    except FormatError:
        return
    assert len(read) == 1


def test_keys_print_and_travel():
    import pickle

    keys = pickle.loads(pickle.dumps(ExampleKeys(["a"])))
    assert repr(keys.locate(np.frombuffer(b"", np.uint8))) == "<Examples 1 of 1 keys, 0 bytes>"
