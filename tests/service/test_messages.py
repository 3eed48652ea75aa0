"""Messages: what is packed comes back, and nothing that is not a message does harm."""

import gc
import json
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.errors import RateLimitError, ServiceError, StepError, TableError
from stepwell.service.messages import HEAD, Kind, error_message, pack, unpack

DTYPES = st.sampled_from([np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.complex64])


@given(
    columns=st.dictionaries(
        st.text(max_size=8),
        DTYPES.flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        ),
        max_size=5,
    ),
    about=st.dictionaries(
        st.text(max_size=5).filter(lambda key: key != "columns"), st.integers() | st.text(), max_size=3
    ),
)
def test_what_is_packed_comes_back(columns, about):
    message = unpack(pack(Kind.STEPS, about, columns), Kind.STEPS)
    assert message.head == about
    assert list(message.columns) == list(columns)
    for name, column in columns.items():
        found = message.columns[name]
        assert found.dtype == column.dtype and found.shape == column.shape
        assert found.tobytes() == column.tobytes()
        assert found.flags.aligned


def test_columns_lie_at_multiples_of_64_bytes():
    data = pack(Kind.BATCH, None, {"a": np.zeros(3, np.int8), "b": np.arange(2.0)})
    base = np.frombuffer(data, np.uint8).ctypes.data
    columns = unpack(data, Kind.BATCH).columns
    assert [(column.ctypes.data - base) % 64 for column in columns.values()] == [0, 0]


def test_arrays_that_are_not_contiguous_are_packed_by_value():
    column = np.arange(12).reshape(3, 4)[:, ::2]
    assert unpack(pack(Kind.ACK, None, {"a": column}), Kind.ACK).columns["a"].tolist() == column.tolist()


def test_a_message_of_another_kind_is_refused():
    with pytest.raises(ServiceError, match=r"got STEPS where HELLO was due"):
        unpack(pack(Kind.STEPS), Kind.HELLO)


@pytest.mark.parametrize("error", [StepError("a"), TableError("b"), RateLimitError("c"), ServiceError("d")])
def test_errors_come_as_their_class(error):
    with pytest.raises(type(error), match=str(error)):
        unpack(error_message(error), Kind.BATCH)


def test_other_errors_come_as_those_of_the_server():
    with pytest.raises(ServiceError, match="ZeroDivisionError at the server: x"):
        unpack(error_message(ZeroDivisionError("x")), Kind.BATCH)


@pytest.mark.parametrize("name", ["__import__", "StepwellError.__init__", "LeftOutWarning", "", None, 3])
def test_an_error_of_an_unknown_class_is_one_of_the_service(name):
    text = json.dumps({"error": name, "text": "t"}).encode()
    with pytest.raises(ServiceError, match="t"):
        unpack(HEAD.pack(Kind.ERROR, 0, 0, len(text), 0) + text, Kind.BATCH)


def made(specs, payload=b""):
    text = json.dumps({"columns": specs}).encode()
    gap = -(HEAD.size + len(text)) % 64
    return HEAD.pack(Kind.STEPS, 0, 0, len(text), len(payload)) + text + bytes(gap) + payload


@pytest.mark.parametrize(
    "specs",
    [
        [["a", "<f4", [1 << 40]]],
        [["a", "<f4", [1 << 62, 0]]],
        [["a", "<f4", [-1]]],
        [["a", "<f4", [1.5]]],
        [["a", "<f4", [True]]],
        [["a", "O", [1]]],
        [["a", "V8", [1]]],
        [["a", "<U1", [1]]],
        [["a", "f4,f4", [1]]],
        [["a", "<M8[s]", [1]]],
        [["a", "nonsense", [1]]],
        [["a", "<f4", [0] * 40]],
        [["a", "<f4"]],
        [["a", "<f4", [1]], ["a", "<f4", [1]]],
        ["a"],
        "a",
        {"a": 1},
        [[1, "<f4", [1]]],
        [["a", ["<f4"], [1]]],
        [["a", "<f4", 4]],
        [["a", "<f4", [0]]] * 5000,
    ],
)
def test_columns_that_cannot_be_are_refused_before_memory_is_taken(specs):
    with pytest.raises(ServiceError):
        unpack(made(specs, bytes(64)), Kind.STEPS)


def test_100_000_damaged_messages_do_no_harm():
    rng = random.Random(5)
    good = [
        pack(
            Kind.STEPS,
            {"first": [1, 2, 3], "count": 2, "ops": [[1, "end", {}]]},
            {"x": np.ones((2, 3)), "y": np.arange(2)},
        ),
        pack(Kind.HELLO, {"protocol": 1, "name": "a", "fields": {"x": {"offsets": [0, 1]}}}),
        pack(Kind.ASK, {"rows": 4}, {"keys": np.arange(3, dtype=np.uint64), "priorities": np.ones(3)}),
    ]
    kinds = tuple(Kind)
    gc.collect()
    tracemalloc.start()
    unpacked = 0
    for number in range(100_000):
        data = bytearray(rng.choice(good)) if number % 8 else bytearray(rng.randbytes(rng.randrange(200)))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data) + 1) :]
        if rng.random() < 0.1:
            data += rng.randbytes(rng.randrange(100))
        try:
            message = unpack(bytes(data), *kinds)
        except (ServiceError, StepError):
            continue
        unpacked += 1
        assert sum(column.nbytes for column in message.columns.values()) <= len(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert unpacked > 1000
    assert peak < 8 << 20
