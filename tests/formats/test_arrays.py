"""Arrays of .npy and .npz files are read to their values; of damaged ones an error comes before memory is taken."""

import ast
import io
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepwell.formats.arrays import npy_array, npy_head, npz_arrays
from stepwell.testing import damaged_copies


def saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


ARRAYS = [np.arange(6.0).reshape(2, 3), np.zeros((0, 3), "i2"), np.float32(5), np.asfortranarray(np.ones((4, 2), bool))]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.shape))
def test_an_array_is_read_as_it_was_saved(array: Any) -> None:
    found = npy_array(saved(np.save, array))
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())


def test_a_head_is_told_without_the_rest() -> None:
    data = saved(np.save, ARRAYS[3])
    stream = io.BytesIO(data[:-8])
    assert npy_head(stream) == ((4, 2), True, np.dtype("bool"))
    assert stream.tell() == len(data) - 8


def test_an_array_is_read_though_threads_get_in_the_way_of_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    # numpy parses headers by this; threads share its depth in Python 3.11
    parse, num_calls = ast.literal_eval, 0

    def stumbling(text: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3:
            raise SystemError("AST constructor recursion depth mismatch (before=10, after=4)")
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", stumbling)
    assert npy_array(saved(np.save, ARRAYS[0])).tolist() == ARRAYS[0].tolist() and num_calls == 6


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_have_their_names(save: Callable[..., None]) -> None:
    found = npz_arrays(io.BytesIO(saved(save, größe=ARRAYS[0], b=ARRAYS[1])))
    assert {name: array.tolist() for name, array in found.items()} == {"größe": ARRAYS[0].tolist(), "b": []}


def test_what_claims_more_than_it_has_is_refused() -> None:
    data = saved(np.save, np.zeros(4))
    with pytest.raises(ValueError, match=r"bytes for \(9999999999,\)"):
        npy_array(data.replace(b"(4,), }         ", b"(9999999999,), }"))
    with pytest.raises(ValueError, match="bytes for"):
        npy_array(data[:-1])
    with pytest.raises(ValueError, match=r"not a \.npz file"):
        npz_arrays(io.BytesIO(data))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("a.npy", data)
    raw = bytearray(bomb.getvalue())
    place = raw.rindex(b"PK\x01\x02") + 24  # the size in the directory
    raw[place : place + 4] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"a\.npy claims 2147483648 bytes in \d+ of \d+"):
        npz_arrays(io.BytesIO(raw))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files_end_in_a_value_error_or_the_right_values(save: Callable[..., None]) -> None:
    num_refused = 0
    for _, data in damaged_copies(saved(save, ARRAYS[0]), 200):
        try:
            found = npz_arrays(io.BytesIO(data))
        except ValueError:
            num_refused += 1
            continue
        assert all(np.array_equal(array, ARRAYS[0]) for array in found.values())
    assert num_refused > 100
