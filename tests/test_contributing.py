"""CONTRIBUTING.md and the Makefile name files and classes that exist."""

import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_files_that_it_names_are_there() -> None:
    paths = set(re.findall(r"`((?:src|tests|docs)/[\w/.-]+)`", TEXT))
    assert len(paths) >= 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_names_that_it_gives_can_be_imported() -> None:
    names = set(re.findall(r"`(stepwell(?:\.\w+)+)`", TEXT))
    assert len(names) >= 9
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


def test_functions_that_it_names_are_where_it_says() -> None:
    for names, path in re.findall(r"((?:`\w+`(?: and )?)+) (?:in|of) `(src/[\w/.]+\.py)`", TEXT):
        for name in re.findall(r"`(\w+)`", names):
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (name, path)


def test_the_tests_that_the_makefile_names_are_there() -> None:
    named = re.findall(r"\btests/[\w/]+\.py", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert len(named) >= 20
    assert [path for path in named if not (ROOT / path).exists()] == []
