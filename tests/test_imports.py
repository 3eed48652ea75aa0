"""What ``import stepwell`` loads, and that every public name is there."""

import subprocess
import sys
from pathlib import Path

import pytest

import stepwell
from stepwell.errors import install_command
from stepwell.testing import tiny_store

HEAVY = ["torch", "numba", "av", "cv2", "pyarrow", "simplejpeg", "imagecodecs", "zstandard", "tqdm", "gymnasium", "PIL"]


def loaded_after(code: str) -> set[str]:
    """Return the names of the modules that a fresh Python has loaded after running ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_stepwell_loads_nothing_heavy() -> None:
    assert loaded_after("import stepwell") & set(HEAVY) == set()


def test_help_of_the_command_loads_nothing_heavy() -> None:
    loaded = loaded_after("from stepwell.cli.main import make_parser; make_parser().format_help()")
    assert loaded & {*HEAVY, "numpy"} == set()


@pytest.mark.parametrize("words", [["stats", "--help"], ["rm", "--help"], ["inof"], ["ls", "x", "--fisrt", "3"]])
def test_what_needs_no_store_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import os, sys; from stepwell.cli.main import main\n"
        "printed, sys.stdout, sys.stderr = sys.stdout, open(os.devnull, 'w'), open(os.devnull, 'w')\n"
        f"try: main({words!r})\n"
        "except SystemExit: sys.stdout = printed"
    )
    loaded = loaded_after(code)
    assert "stepwell.cli.parsing" in loaded
    assert loaded & {*HEAVY, "numpy", "argcomplete", "rich"} == set()


def test_opening_a_name_loads_no_framework() -> None:
    loaded = loaded_after("import stepwell; stepwell.Store; stepwell.Loader; stepwell.random")
    assert loaded & {"torch", "cv2", "gymnasium", "simplejpeg"} == set()


@pytest.mark.parametrize("name", stepwell.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(stepwell, name) is not None
    assert name in dir(stepwell)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = stepwell.no_such_name


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert stepwell.__version__ == version("stepwell")


def test_a_star_import_needs_no_optional_package() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from stepwell import *\n"
        "import inspect, stepwell; inspect.getmembers(stepwell)\n"
        "try: stepwell.EpisodeRecorder\n"
        "except ImportError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert install_command("gymnasium") in ran.stdout


@pytest.mark.parametrize("package", ["codecs", "order", "replay", "transforms"])
def test_a_package_of_public_names_needs_no_import_of_its_own(package: str) -> None:
    loaded = loaded_after(f"import stepwell; stepwell.{package}.__all__")
    assert f"stepwell.{package}" in loaded


def test_a_local_store_is_read_without_what_speaks_http(tmp_path: Path) -> None:
    path = str(tiny_store(tmp_path / "tiny.well").path)
    loaded = loaded_after(f"import stepwell; next(iter(stepwell.Loader(stepwell.open({path!r}, mode='r'))))")
    assert "stepwell.loader.loader" in loaded
    assert not {"http.client", "urllib.request", "ssl", "fsspec", "stepwell.references.remote_files"} & loaded
