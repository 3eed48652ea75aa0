"""The names that README.md and docs/ teach, with their signatures, and the error texts that they show."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import stepwell

from .expectations import check, load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# of dotted names in the pages, those of modules that they tell users to import
DOTTED = re.compile(r"\bstepwell((?:\.[a-z_0-9]+)*\.[A-Za-z_0-9]+)\b")
IMPORTED = re.compile(r"^from (stepwell[\w.]*) import (.+)$", re.MULTILINE)
# users get these from functions, and never make them
MADE_BY_OTHERS = {"Store", "Episode", "Writer", "Batch", "TableWriter", "ConvertReport"}


def documented() -> dict[str, Any]:
    """Return the public objects, by dotted name."""
    text = "\n".join(page.read_text() for page in PAGES)
    names = {f"stepwell.{name}" for name in stepwell.__all__}
    names |= {f"stepwell{name}" for name in DOTTED.findall(text)}
    names |= {f"{module}.{name.strip()}" for module, found in IMPORTED.findall(text) for name in found.split(",")}
    found = {name: resolved(name.split(" as ")[0]) for name in names}
    return {name: value for name, value in found.items() if value is not None and not inspect.ismodule(value)}


def resolved(name: str) -> Any:
    """Return what a dotted name means; None for what is a file or an option in the text."""
    parts = name.split(".")
    value: Any = stepwell
    for number, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:number]))
            except ImportError:
                return None
    return value


def described(value: Any, names: set[str]) -> Any:
    """Return a signature; of a class those of its members of these names, too."""
    if not inspect.isclass(value):
        return signature(value) if callable(value) else "a value"
    found: dict[str, Any] = {"bases": [base.__name__ for base in value.__mro__[1:] if base.__module__ == "builtins"]}
    if value.__name__ not in MADE_BY_OTHERS:
        found["__init__"] = signature(value)
    for name, member in _members_of(value).items():
        if name in names and not name.startswith("_") and name not in vars(dict):
            found[name] = signature(member) if inspect.isroutine(member) else "an attribute"
    for name in sorted(names & _fields_of(value)):
        found[name] = "an attribute"
    return found


def _members_of(value: Any) -> dict[str, Any]:
    # completion does not offer all of them
    hidden = {name for base in value.__mro__ for name in vars(base)} - set(dir(value))
    return dict(inspect.getmembers(value)) | {name: getattr(value, name) for name in hidden if hasattr(value, name)}


def _fields_of(value: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()


def signature(value: Any) -> str:
    """Return names, kinds and defaults of parameters; annotations may be made better."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "no signature"
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(plain)))


@pytest.mark.filterwarnings("ignore:stepwell.* is now stepwell:DeprecationWarning")
def test_every_documented_name_has_the_signature_it_had() -> None:
    kept = load("surface")
    if kept:
        # what is new is no break; what was frozen may not go or change
        found = {name: described(resolved(name), set(members)) for name, members in kept.items()}
    else:
        words = set(re.findall(r"\w+", "\n".join(page.read_text() for page in PAGES)))
        found = {name: described(value, words) for name, value in documented().items()}
    assert len(found) > 150
    check("surface", found)


def test_the_error_texts_that_pages_show_are_the_same() -> None:
    # tests/test_readme.py runs the blocks of the pages and compares what they print
    found = {page.name: sorted(shown_errors(page.read_text())) for page in PAGES}
    assert sum(map(len, found.values())) > 5
    check("errors", {page: errors for page, errors in found.items() if errors})


def shown_errors(text: str) -> set[str]:
    """Return the lines of output that blocks print which catch an error."""
    blocks = re.findall(r"```python\n(.*?)```\n+```output\n(.*?)```", text, re.DOTALL)
    return {line for code, output in blocks if "except " in code for line in output.splitlines()}
