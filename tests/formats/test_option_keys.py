"""Options are told from others by what they do, the same way in every process."""

import subprocess
import sys
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from stepwell import Array, Text
from stepwell.errors import FormatError
from stepwell.formats import even_splits
from stepwell.formats.option_keys import option_key

SCRIPT = """
from stepwell import Array
from stepwell.formats.option_keys import option_key
decoders = {"txt": (Array((), "int64"), lambda data: data in {"1", "2", "x"})}
print(option_key({"decoders": decoders, "ignore": {"a", "b", "cc"}}))
"""


def scaled(factor):
    return lambda data: int(data) * factor


def defaulted(factor):
    def scale(data, factor=factor):
        return int(data) * factor

    return scale


def test_options_have_the_same_key_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert " at 0x" not in found.pop()


def test_functions_are_told_apart_by_code_closure_and_defaults() -> None:
    kinds = [scaled(1), scaled(2), defaulted(1), defaulted(2), partial(max, 1), partial(max, 2), itemgetter(1), int]
    kinds += ["abc".startswith, Path("a").joinpath, Path("b").joinpath]
    assert len({option_key(kind) for kind in kinds}) == len(kinds)
    assert option_key(scaled(2)) == option_key(scaled(2))


def test_values_are_told_apart_whole() -> None:
    long, other = np.arange(5000), np.arange(5000)
    other[2500] = 0
    values = [long, other, Text(), Array(2), Array(3), "1", 1, True, 1.0, None, [1, 2], {1: 2}, {1, 2}]
    values += even_splits("train", 2)
    assert len({option_key(value) for value in values}) == len(values)


def test_what_cannot_be_told_from_others_is_refused() -> None:
    with pytest.raises(FormatError, match="cannot be pickled"):
        option_key(value for value in ())
    loop: list = []
    loop.append(loop)
    with pytest.raises(FormatError, match="holds itself"):
        option_key(loop)


def test_a_function_over_a_name_without_a_value_has_a_key() -> None:
    def made(is_given: bool):
        if is_given:
            later = 1
        return lambda data: (data, later)

    assert option_key(made(False)) != option_key(made(True))
