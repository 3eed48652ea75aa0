"""install(): stepwell's classes in the place of those of a package that is laid out as lerobot is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

import stepwell.lerobot
from stepwell.errors import MissingDependencyError
from stepwell.lerobot import installing

CLASS = "class {}: pass\n"
NEW = {
    "dataset_metadata": CLASS.format("LeRobotDatasetMetadata"),
    "lerobot_dataset": "from .dataset_metadata import LeRobotDatasetMetadata\n"
    + CLASS.format("LeRobotDataset")
    + "LeRobotDataset.resume = None\n",
    "multi_dataset": "from .lerobot_dataset import LeRobotDataset\n" + CLASS.format("MultiLeRobotDataset"),
    "sampler": "class EpisodeAwareSampler:\n    def __init__(self, seed=0): pass\ndef compute_sampler_state(): pass\n",
    "streaming_dataset": "from .dataset_metadata import LeRobotDatasetMetadata\n"
    + CLASS.format("StreamingLeRobotDataset"),
    "video_utils": CLASS.format("VideoEncodingManager"),
    "dataset_tools": "from .lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata\n",
    "factory": "from .dataset_metadata import LeRobotDatasetMetadata\nfrom .lerobot_dataset import LeRobotDataset\n",
    "__init__": "from .factory import *\nfrom .multi_dataset import MultiLeRobotDataset\nfrom . import dataset_tools\n",
}
OLD = {
    "lerobot_dataset": "".join(
        CLASS.format(name) for name in ("LeRobotDatasetMetadata", "LeRobotDataset", "MultiLeRobotDataset")
    ),
    "factory": "from .lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata\n",
    "sampler": CLASS.format("EpisodeAwareSampler"),
    "__init__": "from . import factory\n",
}


def laid_out(folder: Path, files: dict[str, str]) -> None:
    (folder / "lerobot/datasets").mkdir(parents=True)
    (folder / "lerobot/__init__.py").write_text("")
    (folder / "lerobot/script.py").write_text("from lerobot.datasets.lerobot_dataset import LeRobotDataset\n")
    for name, text in files.items():
        (folder / f"lerobot/datasets/{name}.py").write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that modules are imported from; lerobot's own, if it is here, is not seen."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(stepwell.lerobot.LeRobotDataset, "goes_on_when_opened", False)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        del sys.modules[name]


def module(name: str) -> ModuleType:
    return __import__(name, fromlist=["x"])


def test_every_module_has_our_classes_also_later_ones(folder: Path) -> None:
    laid_out(folder, NEW)
    stepwell.lerobot.install()
    stepwell.lerobot.install()
    for name in ("lerobot_dataset", "multi_dataset", "dataset_tools", "factory"):
        assert module(f"lerobot.datasets.{name}").LeRobotDataset is stepwell.lerobot.LeRobotDataset
    assert module("lerobot.datasets").MultiLeRobotDataset is stepwell.lerobot.MultiLeRobotDataset
    for name in ("EpisodeAwareSampler", "compute_sampler_state"):
        assert getattr(module("lerobot.datasets.sampler"), name) is getattr(stepwell.lerobot, name)
    streaming = module("lerobot.datasets.streaming_dataset")
    assert streaming.StreamingLeRobotDataset is stepwell.lerobot.StreamingLeRobotDataset
    for name in ("factory", "dataset_metadata"):
        assert module(f"lerobot.datasets.{name}").LeRobotDatasetMetadata is stepwell.lerobot.LeRobotDatasetMetadata
    assert module("lerobot.script").LeRobotDataset is stepwell.lerobot.LeRobotDataset
    assert module("lerobot.datasets.video_utils").VideoEncodingManager is installing.VideoEncodingManager


def test_what_writes_by_inner_parts_of_lerobots_class_keeps_its_metadata(folder: Path) -> None:
    laid_out(folder, NEW)
    stepwell.lerobot.install()
    for name in ("dataset_tools", "lerobot_dataset"):
        kept = module(f"lerobot.datasets.{name}").LeRobotDatasetMetadata
        assert kept.__module__ == "lerobot.datasets.dataset_metadata"


def test_classes_that_are_all_in_one_module_are_found_there(folder: Path) -> None:
    laid_out(folder, OLD)
    stepwell.lerobot.install()
    home = module("lerobot.datasets.lerobot_dataset")
    assert home.LeRobotDatasetMetadata is stepwell.lerobot.LeRobotDatasetMetadata
    assert home.MultiLeRobotDataset is stepwell.lerobot.MultiLeRobotDataset
    assert module("lerobot.datasets.factory").LeRobotDataset is stepwell.lerobot.LeRobotDataset
    # its orders are those of torch's own seed
    assert module("lerobot.datasets.sampler").EpisodeAwareSampler is not stepwell.lerobot.EpisodeAwareSampler


@pytest.mark.parametrize(("files", "goes_on"), [(OLD, True), (NEW, False)])
def test_a_dataset_goes_on_when_opened_where_lerobot_has_no_resume(
    folder: Path, files: dict[str, str], goes_on: bool
) -> None:
    laid_out(folder, files)
    stepwell.lerobot.install()
    stepwell.lerobot.install()
    assert stepwell.lerobot.LeRobotDataset.goes_on_when_opened is goes_on


def test_without_lerobot_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(MissingDependencyError, match="pip install lerobot"):
        stepwell.lerobot.install()


def test_a_manager_of_videos_finalizes(folder: Path) -> None:
    class Recording:
        ended: tuple[object, ...] = ()

        def __exit__(self, *error: object) -> None:
            self.ended = error

    recording = Recording()
    with pytest.raises(ZeroDivisionError), installing.VideoEncodingManager(recording):
        raise ZeroDivisionError
    assert recording.ended[0] is ZeroDivisionError


def test_a_module_is_run_with_our_classes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepwell.lerobot import __main__

    laid_out(folder, NEW)
    (folder / "lerobot/script.py").write_text(
        "import sys\nfrom lerobot.datasets.lerobot_dataset import LeRobotDataset\n"
        "print(__name__, LeRobotDataset.__module__, sys.argv[1:])\n"
    )
    monkeypatch.setattr(sys, "argv", ["stepwell.lerobot", "lerobot.script", "--steps=3"])
    __main__.main()
    assert capsys.readouterr().out == "__main__ stepwell.lerobot.dataset ['--steps=3']\n"
    monkeypatch.setattr(sys, "argv", ["stepwell.lerobot"])
    with pytest.raises(SystemExit, match="Usage"):
        __main__.main()
