"""Options of readers: those that are given as text, and the key by which a store in the cache is found again."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stepwell import Array, Text
from stepwell.errors import FormatError
from stepwell.formats import even_splits
from stepwell.formats.options import flag_of, names_of, option_key, renames_of

SCRIPT = """
from pathlib import Path
from stepwell import Array
from stepwell.formats.options import option_key
decoders = {"txt": (Array((), "int64"), Path.exists)}
print(option_key({"decoders": decoders, "ignore": {"a", "b", "cc"}}, files=set()))
"""


def test_truths_are_words() -> None:
    assert [flag_of("x", value) for value in (True, "true", "1", "Yes")] == [True] * 4
    assert [flag_of("x", value) for value in (False, "False", "0", "no", "")] == [False] * 5
    with pytest.raises(FormatError, match=r"x='maybe'\. Allowed: true, false"):
        flag_of("x", "maybe")


def test_names_are_a_text_or_several() -> None:
    assert names_of(" a, b.c,,") == names_of(["a", "b.c", ""]) == ["a", "b.c"]
    assert names_of(()) == []


def test_new_names_are_mappings_or_pairs() -> None:
    assert renames_of("a:b, c.d=e,") == {"a": "b", "c.d": "e"}
    assert renames_of({"a": "b"}) == {"a": "b"}
    assert renames_of(None) == {}


def test_a_name_has_one_new_name() -> None:
    with pytest.raises(FormatError, match="a name comes twice"):
        renames_of("a=b, a:c")


@pytest.mark.parametrize("text", ["a", "a=", "a:b,c"])
def test_a_name_without_a_new_one_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="has no new name"):
        renames_of(text)


def test_options_have_the_same_key_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert " at 0x" not in found.pop()


def test_values_are_told_apart_whole() -> None:
    long, other = np.arange(5000), np.arange(5000)
    other[2500] = 0
    values = [long, other, Text(), Array(2), Array(3), "1", 1, True, 1.0, None, [1, 2], {1: 2}, {1, 2}]
    values += [*even_splits("train", 2), partial(max, 1), partial(max, 2), itemgetter(1), int, flag_of, names_of]
    values += ["abc".startswith, Path("a").joinpath, Path("b").joinpath]
    assert len({option_key(value, files=set()) for value in values}) == len(values)


def test_keys_of_which_stores_have_their_identity_stay() -> None:
    assert option_key("train[:10%]") == "'train[:10%]'"
    assert option_key({"b": [1, None], "a": {"y", "x"}}) == "{'a': {'x', 'y'}, 'b': [1, None]}"
    found = option_key(even_splits("train", 2)[0])
    assert found == "stepwell.formats.slicing:EvenSplit 7185792955a8e827ddb80308e4e27ebe"


def test_a_function_counts_by_its_name_and_the_file_of_its_module() -> None:
    files: set[str] = set()
    assert option_key({"transform": partial(flag_of, "x"), "root": math.sqrt}, files=files).count("partial") == 1
    assert files == {str(sys.modules[flag_of.__module__].__file__)}


def of_a_script() -> Callable[[str], str]:
    module = ModuleType("__main__")
    exec("def made(text): return text", module.__dict__)
    function: Callable[[str], str] = module.made
    return function


@pytest.mark.parametrize("made", [lambda text: text, of_a_script(), partial(lambda text: text, "a")])
def test_a_function_that_no_other_process_finds_is_refused_with_what_to_do(made: Callable[[str], str]) -> None:
    with pytest.raises(FormatError, match=r"no other process finds this function by its name.*Define it with def"):
        option_key({"decoders": {"txt": made}}, files=set())
    # where no store is kept it is its own for as long as the process lives
    assert option_key(made) == option_key(made) != option_key(lambda text: text)


def test_what_cannot_be_told_from_others_is_refused() -> None:
    with pytest.raises(FormatError, match="cannot be pickled"):
        option_key(value for value in ())
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(FormatError, match="holds itself"):
        option_key(loop)
