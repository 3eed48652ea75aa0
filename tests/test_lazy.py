import ast
import importlib
from pathlib import Path

import pytest

import stepwell
from stepwell.references import file_codec, file_spans


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("stepwell.codecs.files", "FileCodec", file_codec.FileCodec),
        ("stepwell.codecs.file_spans", "span_feature", file_spans.span_feature),
    ],
)
def test_names_that_moved_are_found_where_they_were_with_a_warning(module: str, name: str, value: object) -> None:
    old = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{name} is now stepwell.references"):
        assert getattr(old, name) is value
    with pytest.raises(AttributeError):
        old.__wrapped__  # noqa: B018


ROOT = Path(stepwell.__file__).parent
LAZY = [path.parent for path in ROOT.rglob("__init__.py") if "load_name(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("folder", LAZY, ids=lambda folder: folder.name)
def test_no_module_hides_a_name_that_its_package_loads_on_first_use(folder: Path) -> None:
    """Importing a module sets it as an attribute of its package, whose ``__getattr__`` is not asked from then on."""
    names = exported(folder / "__init__.py")
    assert names
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules & names == set()


def exported(path: Path) -> set[str]:
    """Return the names in a package's ``__all__``."""
    targets = (ast.Assign, ast.AnnAssign)
    assigned = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, targets)]
    (value,) = [node.value for node in assigned if "__all__" in ast.unparse(node).partition("=")[0]]
    return set(ast.literal_eval(value))
