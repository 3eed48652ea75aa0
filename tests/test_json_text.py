"""JSON of others is parsed in one place, whose only error is ValueError."""

import ast
from pathlib import Path

import pytest

import stepwell
from stepwell import Array, CorruptSegmentError
from stepwell.json_text import parse_json
from stepwell.transforms import Normalize

PACKAGE = Path(__file__).parents[1] / "src" / "stepwell"
# the child that reads HDF5 files imports nothing of stepwell, and is sent what its parent wrote
OWN = {"json_text.py", "readers/hdf5_child.py"}


def parses(node: ast.AST) -> bool:
    """Whether it is a call of ``json.load`` or ``json.loads``, but for one of what ``json.dumps`` gave."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    called = ast.unparse(node.func)
    return called in ("json.load", "json.loads") and not ast.unparse(node).startswith("json.loads(json.dumps(")


def test_no_other_module_of_the_package_parses_json() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "testing" not in path.parts]
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in files
        if any(parses(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == OWN


@pytest.mark.parametrize(
    "text",
    ["", "{", b"\xff\xfe\x00", b"\x80", "[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "1" * 10_000, "\ud800"],
    ids=lambda text: str(text)[:12],
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)


@pytest.mark.parametrize("line", range(3))
def test_metadata_of_an_episode_that_are_nested_too_deep_are_damage(tmp_path: Path, line: int) -> None:
    with stepwell.create(tmp_path / "a.well", {"x": Array()}) as store, store.writer() as writer:
        for number in range(3):
            writer.add_episode({"x": [0.0]}, number=number)
    (path,) = (tmp_path / "a.well" / "segments").glob("*/episodes.jsonl")
    lines = path.read_bytes().split(b"\n")
    lines[line] = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    path.write_bytes(b"\n".join(lines))
    store = stepwell.open(tmp_path / "a.well", mode="r")
    with pytest.raises(CorruptSegmentError, match="nested too deep"):
        [episode.metadata for episode in store]
    assert store.verify(deep=True)


def test_records_of_transforms_that_are_no_json_are_refused() -> None:
    for text in ("{", "[" * 100_000):
        with pytest.raises(stepwell.WindowError, match="is no JSON of Normalize"):
            Normalize.from_json(text)
