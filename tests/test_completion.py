"""Completion offers the names that the pages teach, and nothing that is for stepwell's own modules."""

import builtins
import inspect
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Loader, Table, View

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
CODE = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
WORDS = set(re.findall(r"\w+", TEXT))
PACKAGES = ("beton", "ffcv", "formats", "lerobot", "ray", "recorders", "testing", "tfds", "webdataset")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return one of each class, by the names that pages have for them."""
    store = stepwell.create(tmp_path_factory.mktemp("store") / "walk.well", {"state": Array()})
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros(4, np.float32)})
    store.refresh()
    loader = Loader(store)
    return {
        "store": store,
        "episode": store[0],
        "view": View(store),
        "loader": loader,
        "table": Table(store),
        "batch": next(iter(loader)),
    }


def offered(value: Any) -> set[str]:
    """Return what IPython and Python's own shell offer: names of the object, and of its class."""
    return {name for name in {*dir(value), *dir(type(value))} if not name.startswith("_")}


@pytest.mark.parametrize("name", ["store", "episode", "view", "loader", "table", "batch"])
def test_members_that_pages_use_are_offered(objects: dict[str, Any], name: str) -> None:
    used = set(re.findall(rf"\b{name}\.([a-z]\w*)", CODE))
    assert used & offered(objects[name])
    # "store.well" is a file, and some pages give a name to another class
    has = {member for base in type(objects[name]).__mro__ for member in vars(base)}
    assert used & has - offered(objects[name]) == set()


@pytest.mark.parametrize("name", ["store", "episode", "view", "loader", "table", "batch"])
def test_nothing_is_offered_that_no_page_names(objects: dict[str, Any], name: str) -> None:
    assert offered(objects[name]) - set(dir(dict)) - WORDS == set()


def test_internals_are_not_offered_and_work(objects: dict[str, Any]) -> None:
    internal = {
        "store": "replace_record reserve_ordinals ensure_schema check_writable renew_lock evictor record segments",
        "episode": "first_step_id",
        "view": "parts segments",
        "loader": "reader settings",
        "table": "places sample_placed state_arrays draw_batch lock history",
    }
    for name, members in internal.items():
        assert offered(objects[name]) & set(members.split()) == set()
        assert all(hasattr(objects[name], member) for member in members.split())


def test_keys_of_an_episode_are_offered(objects: dict[str, Any]) -> None:
    assert objects["episode"]._ipython_key_completions_() == ["state"]


def test_the_package_offers_what_works_and_nothing_else() -> None:
    names = {name for name in dir(stepwell) if name != "__version__"}
    taught = {name for name in re.findall(r"\bstepwell\.([A-Za-z]\w*)\(", CODE) if hasattr(stepwell, name)}
    taught |= {
        name.strip()
        for line in re.findall(r"^from stepwell import (.+)$", CODE, re.MULTILINE)
        for name in line.partition("#")[0].split(",")
    }
    assert len(taught) > 30
    assert taught - names == set()
    assert {"open", "random", "lerobot", "transforms", "testing", "replay"} <= names
    assert all(inspect.ismodule(value) or callable(value) for value in (getattr(stepwell, name) for name in names))
    assert not names & {"Any", "TYPE_CHECKING", "annotations", "import_module", "kernels", "json_text"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_offer_their_public_names(package: str) -> None:
    module = getattr(stepwell, package, None) or __import__(f"stepwell.{package}", fromlist=["x"])
    assert dir(module) == sorted(module.__all__)


def test_a_star_import_hides_no_builtin_and_no_module_of_the_standard_library() -> None:
    names = set(stepwell.__all__)
    assert names & set(dir(builtins)) == set()
    assert names & set(sys.stdlib_module_names) == set()
    # in a fresh namespace, as a user does it
    code = "import random\nbefore = open, random\nfrom stepwell import *\nassert (open, random) == before\nStore"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_type_checker_finds_the_types_in_an_installed_package() -> None:
    assert (files("stepwell") / "py.typed").is_file()
