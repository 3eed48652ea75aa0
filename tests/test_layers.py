"""Imports run one way: a layer imports those below it, never one above, not even inside a function."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "stepwell"
# from the bottom up; parts of one row may not import each other
LAYERS = (
    ("errors",),
    ("alignment", "json_text", "lazy", "process", "progress", "sizes"),
    ("schema", "kernels", "files", "display"),
    ("codecs",),
    ("references",),
    ("store",),
    ("windows",),
    ("transforms",),
    ("order",),
    ("loader",),
    ("replay",),
    ("recorders", "sb3", "torchrl", "service"),
    ("reverb",),
    ("formats",),
    ("lerobot", "beton", "webdataset", "tfds", "readers", "bags", "octo"),
    ("ffcv", "timm"),
    ("ray", "viewer"),
    ("cli",),
)
FLOOR = {part: floor for floor, row in enumerate(LAYERS) for part in row}
# the facade re-exports from everywhere, and testing serves users' tests from outside: nothing in a layer may need them
OUTSIDE = {"__init__", "__main__", "testing", "examples"}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) of every import in a file, lazy ones too."""
    package = ("stepwell", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            # "from stepwell import store" names a layer, "from stepwell import open" the facade
            yield from (
                (node.lineno, f"{module}.{alias.name}" if module == "stepwell" else module) for alias in node.names
            )


def upward_imports(path: Path) -> list[str]:
    here = part_of(path)
    found = []
    for line, module in imported_modules(path):
        root, _, rest = module.partition(".")
        there = rest.partition(".")[0]
        if root != "stepwell" or there in {here, "__version__"}:
            continue
        if there not in FLOOR or FLOOR[there] >= FLOOR[here]:
            found.append(f"{path.relative_to(PACKAGE)}:{line} imports {module}")
    return found


LAYERED = [path for path in sorted(PACKAGE.rglob("*.py")) if part_of(path) not in OUTSIDE]


def test_every_part_of_the_package_has_its_layer() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert parts - OUTSIDE == set(FLOOR)


@pytest.mark.parametrize("part", FLOOR)
def test_a_layer_imports_only_the_layers_below_it(part: str) -> None:
    files = [path for path in LAYERED if part_of(path) == part]
    assert files
    assert [line for path in files for line in upward_imports(path)] == []


def test_an_upward_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "stores.py"
    path.write_text(
        "import stepwell.schema\nfrom .. import loader\nfrom ..cli.main import main\n"
        "def f():\n    from stepwell import open\n"
    )
    found = [line.split()[-1] for line in upward_imports(path)]
    assert found == ["stepwell.loader", "stepwell.cli.main", "stepwell.open"]
