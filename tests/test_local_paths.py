"""An address is no place to write to: nothing is made of it here, whatever writes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Table, convert, write_episodes, write_samples
from stepwell.beton import write_beton
from stepwell.cli.main import main
from stepwell.errors import FormatError
from stepwell.files.addresses import local_path
from stepwell.lerobot import LeRobotRecorder, write_dataset
from stepwell.replay import load, save
from stepwell.store import concatenate
from stepwell.testing import tiny_store
from stepwell.tfds import write_rlds, write_tfds
from stepwell.webdataset import write_webdataset

EPISODE = {"x": np.zeros((3, 2), "f4")}
WRITERS: dict[str, Callable[[Any, str], Any]] = {
    "create": lambda store, path: stepwell.create(path, {"x": Array(2)}),
    "create, exist_ok": lambda store, path: stepwell.create(path, {"x": Array(2)}, exist_ok=True),
    "checkpoint": lambda store, path: store.checkpoint(path),
    "concatenate": lambda store, path: concatenate(path, [store]),
    "convert": lambda store, path: convert(store, path, {}, workers=1),
    "write_episodes": lambda store, path: write_episodes(path, [EPISODE], workers=1),
    "write_samples": lambda store, path: write_samples(path, [{"x": np.zeros(2, "f4")}], workers=1),
    "Table.checkpoint": lambda store, path: Table(store).checkpoint(path),
    "Table.save": lambda store, path: Table(store).save(path),
    "Table.save_state": lambda store, path: Table(store).save_state(path),
    "save": lambda store, path: save(f"{path}.tar", [Table(store)]),
    "write_beton": lambda store, path: write_beton(store, path, workers=1),
    "write_webdataset": lambda store, path: write_webdataset(store, path, workers=1),
    "write_rlds": lambda store, path: write_rlds(store, path, name="tiny", workers=1),
    "write_tfds": lambda store, path: write_tfds(store, path, name="tiny", workers=1),
    "write_dataset": lambda store, path: write_dataset(store, path, task="lift"),
    "LeRobotRecorder": lambda store, path: LeRobotRecorder.create(path, fps=10, features={}),
    "load": lambda store, path: load("saved.tar", to=path),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("address", ["s3://bucket/new.well", "file:///tmp/new.well", "lerobot://me/data"])
def test_a_path_with_a_scheme_is_refused_and_nothing_is_made(
    folder: Path, tmp_path: Path, writer: str, address: str
) -> None:
    store = tiny_store(tmp_path / "a.well")
    with pytest.raises(FormatError, match="local paths"):
        WRITERS[writer](store, address)
    assert not list(folder.iterdir())


def test_what_a_path_object_leaves_of_a_scheme_is_refused() -> None:
    for path in (Path("gs://bucket/a.well"), Path("S3://bucket/a.well")):
        with pytest.raises(FormatError, match="local paths"):
            local_path(path)


@pytest.mark.parametrize("path", ["a.well", "./s3:/a.well", "/data/a:b/c.well", "C:/data/a.well", "s3:/a", "a://"[:1]])
def test_paths_of_this_machine_are_taken(path: str) -> None:
    assert local_path(path) == path
    assert local_path(Path("data", "a.well")) == f"data{os.sep}a.well"


def test_a_directory_named_as_a_scheme_may_be_given_as_a_path_object(folder: Path) -> None:
    (folder / "runs:").mkdir()
    assert local_path(Path("runs:/a.well")) == "runs:/a.well"


@pytest.mark.parametrize("command", [["convert"], ["export", "--to", "beton"]])
def test_the_command_line_refuses_it_with_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    store = tiny_store(tmp_path / "a.well")
    assert main([command[0], str(store.path), "s3://bucket/b", *command[1:]]) != 0
    assert "local paths" in capsys.readouterr().err
    assert not list(folder.iterdir())
