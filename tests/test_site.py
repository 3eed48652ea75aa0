"""The site of `make site` has every page and every public name, and what its pages quote of the sources is there."""

import ast
import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.errors import MissingDependencyError

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "stepwell").rglob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
REFERENCE = ROOT / "docs" / "reference"
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
WORD = re.compile(r"\w+")
NAMED = re.compile(r"^::: (stepwell[\w.]*)$", re.MULTILINE)
# what users import from; names of other modules are inner ones
MODULES = (
    "beton codecs errors ffcv ffcv.fields ffcv.loader ffcv.pipeline ffcv.transforms ffcv.writer formats lerobot loader "
    "octo order ray recorders replay reverb sb3 service testing tfds timm torchrl transforms webdataset"
)
PUBLIC = ["stepwell", *(f"stepwell.{name}" for name in MODULES.split())]
FROM_RAY = {"stepwell.ray", "stepwell.ray.rllib"}


def named() -> list[str]:
    """Return the names that the pages of the reference describe."""
    return [name for page in sorted(REFERENCE.glob("*.md")) for name in NAMED.findall(page.read_text(encoding="utf-8"))]


def navigation(entries: list[Any]) -> list[str]:
    """Return the pages of a part of the navigation."""
    found: list[str] = []
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            found += navigation(target) if isinstance(target, list) else [target]
    return found


def test_the_navigation_names_every_page_once_and_no_other() -> None:
    pages = navigation(SITE["nav"])
    assert len(set(pages)) == len(pages)
    missing = {str(page.relative_to(ROOT)) for page in PAGES} - set(pages)
    assert not missing, f"give each one line in `nav` of zensical.toml: {sorted(missing)}"
    assert [page for page in pages if page != "index.md" and not (ROOT / page).exists()] == []


def resolved(name: str) -> Any:
    """Return the object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except MissingDependencyError as error:
        return pytest.skip(str(error))


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    if module in FROM_RAY and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    names = named()
    assert len(set(names)) == len(names)
    try:
        exported = public_names(module)
        if module not in FROM_RAY:
            described = {id(value) for name in names if (value := shared(name)) is not None}
            exported = [name for name in exported if id(getattr(import_module(module), name)) not in described]
    except MissingDependencyError as error:
        pytest.skip(str(error))
    missing = {f"{module}.{name}" for name in exported} - set(names)
    assert not missing, f"give each a line `::: NAME` on a page of docs/reference: {sorted(missing)}"


def public_names(module: str) -> list[str]:
    """Return what a module exports; of errors, its classes."""
    loaded = import_module(module)
    if not (exported := getattr(loaded, "__all__", None)):
        return [name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module]
    # classes of other packages stand there to be imported from one place
    homes = {name: getattr(getattr(loaded, name), "__module__", "stepwell") for name in exported}
    return [name for name, home in homes.items() if home == "builtins" or home.startswith("stepwell")]


def shared(name: str) -> Any:
    """Return the class or function of a name, which another module may export as well; None of what has no identity."""
    try:
        value = resolved(name)
    except (AttributeError, ImportError, pytest.skip.Exception):
        return None
    return value if callable(value) or hasattr(value, "__path__") else None


def test_every_name_of_the_reference_exists() -> None:
    skipped = 0
    for name in named():
        try:
            resolved(name)
        except (ModuleNotFoundError, pytest.skip.Exception):
            skipped += 1
        except AttributeError:
            # of a module that another test tried to import
            (package,) = {"ray", "torchrl"} & set(name.split(".")) or {"stepwell"}
            assert find_spec(package) is None, name
            skipped += 1
    assert skipped < 60 < len(named())


# aliases of types, what FFCV's pipelines make by themselves, and what needs Ray, TensorFlow, timm or an environment
WITHOUT_EXAMPLE = """
Allocation EpisodeReplayBuffer HerReplayBuffer ModuleWrapper ORDER_TYPE ParserTfds PrioritizedReplayBufferSamples
RayExecutor Replay ResizedCropRGBImageDecoder import_dataset start_replay State TFClient torch_of
"""


def test_every_other_name_has_an_example_that_runs() -> None:
    code = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES])
    words = {
        word
        for block in re.findall(r"^```python\n(.*?)^```$", code, re.DOTALL | re.MULTILINE)
        for word in WORD.findall(block)
    }
    bare = [name for name in named() if name.rpartition(".")[2] not in words | set(WITHOUT_EXAMPLE.split())]
    exempt = (Exception, Warning)
    bare = [name for name in bare if not is_kind(name, exempt) and "Example" not in documentation(name)]
    assert not bare, f"give each an example in its docstring, or in a block of its page in docs/reference: {bare}"


def is_kind(name: str, kinds: tuple[type, ...]) -> bool:
    value = shared(name)
    return isinstance(value, type) and issubclass(value, kinds)


def documentation(name: str) -> str:
    """Return the docstring of a name; of one that cannot be loaded here, a text that asks for nothing."""
    value = shared(name)
    return "Example" if value is None else value.__doc__ or ""


def test_top_level_names_are_described_by_their_short_name() -> None:
    assert {f"stepwell.{name}" for name in stepwell.__all__} <= set(named())


def literals() -> set[str]:
    """Return the texts of the sources, of f-strings the parts between braces."""
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def quoted_messages() -> list[str]:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    tables = text[: text.index("## No error, but it is wrong")]
    return re.findall(r"^\| `(.+?)` \|", tables, re.MULTILINE)


def test_every_message_of_the_page_of_troubleshooting_is_raised_somewhere() -> None:
    messages, texts = quoted_messages(), "\0".join(literals())
    assert len(messages) > 40
    for message in messages:
        parts = [part.strip() for part in message.split("...")]
        assert max(map(len, parts)) >= 9, message
        gone = [part for part in parts if part not in texts]
        assert not gone, f"quote the message as it is now in docs/troubleshooting.md: {message!r}, {gone}"


def test_nothing_is_fetched_by_a_page_of_the_site() -> None:
    assert SITE["theme"]["font"] is False
    assert [sheet for sheet in SITE["extra_css"] if not (ROOT / sheet).is_file()] == []
    assert "extra_javascript" not in SITE
    assert set(SITE["plugins"]) == {"mkdocstrings"}
