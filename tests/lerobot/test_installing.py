"""install(): stepwell's classes in the place of those of a package that is laid out as lerobot is."""

from __future__ import annotations

import gc
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

import stepwell.lerobot
from stepwell.errors import FormatError, MissingDependencyError, StepError
from stepwell.lerobot import installing
from stepwell.testing.lerobot import tiny_lerobot

from .recordings import FEATURES, add_frames

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
# a hub that is a directory, and a cache that is another
HUB = """
import os, shutil
from contextlib import nullcontext
from pathlib import Path
HF_LEROBOT_HOME = Path(os.environ["FAKE_HUB"]) / "home"
HF_LEROBOT_HUB_CACHE = HF_LEROBOT_HOME / "hub"
CODEBASE_VERSION = "v3.0"
calls = []
def is_valid_version(revision): return revision.startswith("v")
def has_legacy_hub_download_metadata(root): return (root / ".cache").exists()
def get_safe_version(repo_id, revision, token=None): return "v3.0"
def snapshot_download(
    repo_id, *, repo_type, revision, allow_patterns, ignore_patterns, cache_dir=None, local_dir=None, token=None
):
    calls.append((revision, allow_patterns, ignore_patterns, token))
    target = local_dir or Path(cache_dir, f"snapshots/{revision}")
    source = Path(os.environ["FAKE_HUB"], repo_id)
    for path in source.rglob("*"):
        name = path.relative_to(source).as_posix()
        wanted = [allow_patterns] if isinstance(allow_patterns, str) else allow_patterns or [""]
        is_wanted = any(name.startswith(each) for each in wanted) and not name.startswith(ignore_patterns or "-")
        if path.is_file() and is_wanted:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / name)
    return str(target)
def sync_bucket(address, target, *, delete, quiet, token):
    shutil.copytree(Path(os.environ["FAKE_HUB"], address.removeprefix("hf://buckets/")), target, dirs_exist_ok=True)
def WeakFileLock(path): return nullcontext()
"""
WITH_HUB = {
    **NEW,
    "dataset_metadata": NEW["dataset_metadata"] + HUB,
    "lerobot_dataset": NEW["lerobot_dataset"]
    + "from .dataset_metadata import HF_LEROBOT_HUB_CACHE, snapshot_download\n",
    "dataset_reader": "class DatasetReader:\n"
    "    def look(self): return [*self.root.glob('data/*/*')], len(self.hf_dataset)\n",
    "dataset_writer": "class DatasetWriter:\n"
    "    def __del__(self): self.finalize()\n    def look(self): return self._root\n",
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
    for name in ("goes_on_when_opened", "reader_class", "writer_class"):
        monkeypatch.setattr(stepwell.lerobot.LeRobotDataset, name, getattr(stepwell.lerobot.LeRobotDataset, name))
    for name in ("lerobots_hub", "lerobots_class"):
        monkeypatch.setattr(stepwell.lerobot.LeRobotDatasetMetadata, name, None)
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


def test_readers_and_writers_are_lerobots_too(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_HUB", str(tmp_path))
    laid_out(folder, WITH_HUB)
    stepwell.lerobot.install()
    reader = module("lerobot.datasets.dataset_reader").DatasetReader
    writer = module("lerobot.datasets.dataset_writer").DatasetWriter
    root = tmp_path / "reach"
    dataset = stepwell.lerobot.LeRobotDataset.create("me/reach", 10, FEATURES, root)
    assert isinstance(dataset.writer, writer) and isinstance(dataset.writer, stepwell.lerobot.LeRobotRecorder)
    assert (dataset.writer.look(), dataset.writer.episode_buffer["size"], dataset.latest_episode) == (root, 0, None)
    add_frames(dataset, 0, 3)
    assert dataset.writer.episode_buffer == {"size": 3, "episode_index": 0}
    with pytest.raises(StepError, match="add_frame"):
        dataset.writer.save_episode({"size": 3})
    dataset.save_episode()
    assert dataset.latest_episode is not None and dataset.latest_episode["dataset_to_index"] == 3
    assert dataset.writer._latest_episode["data/file_index"] == dataset.writer._current_file_start_frame == 0
    # as a killed process: theirs would finalize
    del dataset
    gc.collect()
    assert not (root / "data").exists()
    dataset = stepwell.lerobot.LeRobotDataset.resume("me/reach", root)
    dataset.finalize()
    assert isinstance(dataset.reader, reader) and dataset.reader is dataset.reader
    dataset.reader.hf_dataset = [1, 2, 3]
    assert dataset.reader.look() == ([*root.glob("data/*/*")], 3)
    assert dataset.reader.get_item(2)["observation.state"].tolist() == [0, 2, 0.5]
    dataset.reader.hf_dataset = None
    assert dataset.hf_dataset is None


def test_files_of_the_hub_are_fetched_by_lerobots_functions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("FAKE_HUB", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    tiny_lerobot(tmp_path / "me/tiny", cameras={}, files=3)
    laid_out(folder, WITH_HUB)
    stepwell.lerobot.install()
    calls = module("lerobot.datasets.dataset_metadata").calls
    dataset = stepwell.lerobot.LeRobotDataset("me/tiny", episodes=[0], token="secret")
    names = ["data/chunk-000/file-000.parquet"]
    assert calls == [("v3.0", "meta/", None, "secret"), ("v3.0", names, None, "secret")]
    assert dataset.root == tmp_path / "home/hub/snapshots/v3.0"
    assert (dataset.num_episodes, dataset.repo_id, dataset.revision) == (1, "me/tiny", "v3.0")
    assert "secret" not in str(vars(dataset) | vars(dataset.meta))
    # to a root, whole but for videos; what is there is opened, unless the hub is to be asked
    for asks, count in ((False, 4), (False, 4), (True, 6)):
        dataset = stepwell.lerobot.LeRobotDataset(
            "me/tiny", tmp_path / "mine", force_cache_sync=asks, download_videos=False, revision="main"
        )
        assert (len(calls), dataset.num_episodes, dataset.root) == (count, 3, tmp_path / "mine")
    assert calls[-1] == ("main", None, "videos/", None)
    chosen = stepwell.lerobot.LeRobotDataset("me/tiny", episode_filter=lambda row: row["episode_index"] == 1)
    assert (chosen.episodes, len(calls)) == ([1], 8)
    # a copy below the home is opened, one of some revision that an earlier version has fetched is not
    shutil.copytree(tmp_path / "me/tiny", tmp_path / "home/me/tiny")
    assert stepwell.lerobot.LeRobotDataset("me/tiny").root == tmp_path / "home/me/tiny"
    (tmp_path / "home/me/tiny/.cache").mkdir()
    assert stepwell.lerobot.LeRobotDatasetMetadata("me/tiny").root == tmp_path / "home/hub/snapshots/v3.0"


def test_buckets_are_fetched_whole(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("FAKE_HUB", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    tiny_lerobot(tmp_path / "me/tiny", cameras={})
    with pytest.raises(FormatError, match=r"install\(\)"):
        stepwell.lerobot.StreamingLeRobotDataset("me/tiny", repo_type="bucket")
    laid_out(folder, WITH_HUB)
    stepwell.lerobot.install()
    stream = stepwell.lerobot.StreamingLeRobotDataset("me/tiny", repo_type="bucket", buffer_size=4)
    assert sorted(int(item["index"]) for item in stream) == list(range(stream.num_frames))
    root = tmp_path / "home/hub/buckets--me--tiny"
    assert (stream.root, stream.streaming_from_local) == (root, False)
    assert stepwell.lerobot.LeRobotDatasetMetadata("me/tiny", repo_type="bucket").url_root == "hf://buckets/me/tiny"
