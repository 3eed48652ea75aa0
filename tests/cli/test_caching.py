"""``stepwell cache``: what lies there, what is removed, and what is kept."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.files.file_locks import lock_directory
from stepwell.formats.cache import cache_entries
from stepwell.tfds import write_rlds


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    # kernels of a package that has none
    monkeypatch.setattr("stepwell.cli.caching.PACKAGE", tmp_path / "package")
    return tmp_path / "cache"


@pytest.fixture
def arm(toy_path: Path, tmp_path: Path, cache: Path) -> str:
    """The address of a set that is read in place; it was opened, and a file was fetched."""
    with stepwell.open(toy_path, mode="r") as store:
        address = f"rlds://{write_rlds(stepwell.View(store), tmp_path, name='arm', workers=1)}"
    stepwell.open(address, mode="r").close()
    (cache / "remote" / ".locks").mkdir(parents=True)
    (cache / "remote" / "0123456789abcdef-0123456789ab-train-000.tar").write_bytes(b"x" * 1000)
    (cache / "remote" / ".0123456789abcdef-0123456789ab-val.tar.partial").write_bytes(b"x")
    return address


def records(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["cache", "--json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_empty_cache_is_said_to_be_empty(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{cache}: 0 items, 0 B\n"
    assert main(["cache", "arm"]) == 1
    assert "'arm' is not in the cache. It is empty." in capsys.readouterr().err
    assert not cache.exists()


def test_the_cache_is_listed_with_sizes(arm: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys)
    assert [(each["format"], each["name"]) for each in found] == [("remote", "train-000.tar"), ("rlds", "1.0.0")]
    on_disk = sum(path.stat().st_size for path in Path(found[1]["path"]).rglob("*") if path.is_file())
    assert (found[0]["num_bytes"], found[1]["num_bytes"]) == (1000, on_disk)
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{cache}: 2 items, ")
    assert lines[1].split() == ["format", "name", "size", "last", "used"]
    assert [each["name"] for each in records(capsys, "rlds")] == ["1.0.0"]
    assert main(["cache", "rld"]) == 1
    assert "Did you mean 'rlds'?" in capsys.readouterr().err


def test_clearing_asks_and_takes_what_was_named(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["cache", "--clear"])
    assert left.value.code == 2
    assert "Remove 2 items" in capsys.readouterr().err
    assert len(records(capsys)) == 2
    assert main(["cache", "--clear", "remote", "--yes"]) == 0
    assert capsys.readouterr().out == "1 item, 1.00 kB removed\n"
    assert [each["format"] for each in records(capsys)] == ["rlds"]
    assert main(["cache", "--clear", "--yes"]) == 0
    assert records(capsys) == []
    # it is made again
    assert main(["info", arm]) == 0
    assert len(records(capsys)) == 1


def test_what_is_open_stays(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    with stepwell.open(arm, mode="r") as store:
        assert main(["cache", "--clear", "rlds", "--yes"]) == 0
        assert "in use, and kept: rlds 1.0.0" in capsys.readouterr().out
        assert store[0]["action"].shape == (5, 2)
        assert len(records(capsys, "rlds")) == 1


def test_only_what_was_not_used_for_long(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    (old,) = records(capsys, "rlds")
    long_ago = time.time() - 10 * 24 * 3600
    for path in Path(old["path"]).rglob("*"):
        if path.is_file():
            os.utime(path, (long_ago, long_ago))
    assert [each["format"] for each in records(capsys, "--unused", "9")] == ["rlds"]
    assert records(capsys, "--unused", "11") == []
    assert main(["cache", "--clear", "--unused", "9", "--yes"]) == 0
    assert [each["format"] for each in records(capsys)] == ["remote"]


def test_what_killed_processes_left_is_listed_and_what_is_being_built_is_not(
    arm: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(records(capsys, "rlds")[0]["path"]).parent
    for name in (".a.well.0123abcd.partial", ".b.well.0123.gone"):
        (folder / name).mkdir()
        (folder / name / "x.npy").write_bytes(b"1234")
    with lock_directory(folder / ".a.well.0123abcd.partial"):
        assert {each.path.name for each in cache_entries() if each.num_bytes == 4} == {".b.well.0123.gone"}
    assert len(cache_entries()) == 4
    assert main(["cache", "--clear", "rlds", "--yes"]) == 0
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_compiled_kernels_are_listed_and_removed_where_they_are_named(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against numba: a module of kernels is compiled into each of both places."""
    numbas = tmp_path / "numba"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(numbas))
    module = tmp_path / "package" / "inner" / "loops.py"
    module.parent.mkdir(parents=True)
    module.write_text("import numba\n@numba.njit(cache=True)\ndef twice(x):\n    return 2 * x\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import loops; loops.twice(3)"
    for place in (numbas, None):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(place)}
        if place is None:
            del env["NUMBA_CACHE_DIR"]
        subprocess.run([sys.executable, "-c", code, str(module.parent)], env=env, check=True)
    kept = [path for path in tmp_path.rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert {path.is_relative_to(numbas) for path in kept} == {True, False}
    found = records(capsys, "kernels")
    assert [each["path"] for each in found] == [str(tmp_path / "package"), str(numbas)]
    assert sum(each["num_bytes"] for each in found) == sum(path.stat().st_size for path in kept)
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.count("compiled kernels, 2 files, ") == 2
    # they stay where all is removed
    assert main(["cache", "--clear", "--yes"]) == 0
    assert [each["format"] for each in records(capsys)] == ["kernels", "kernels"]
    assert main(["cache", "--clear", "kernels", "--yes"]) == 0
    assert not any(path.exists() for path in kept) and module.exists()
