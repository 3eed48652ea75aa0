"""stepwell's classes in the place of LeRobot's own, for scripts that are not to be changed."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from typing import Any

from stepwell.errors import MissingDependencyError
from stepwell.lerobot.dataset_tools import __all__ as TOOLS

__all__ = ["VideoEncodingManager", "install"]

# where lerobot has each class; in 0.4 several are in the module of the first
HOMES = {
    "LeRobotDataset": ("lerobot_dataset",),
    "LeRobotDatasetMetadata": ("dataset_metadata", "lerobot_dataset"),
    "MultiLeRobotDataset": ("multi_dataset", "lerobot_dataset"),
    "StreamingLeRobotDataset": ("streaming_dataset",),
    "EpisodeAwareSampler": ("sampler",),
    "compute_sampler_state": ("sampler",),
    "VideoEncodingManager": ("video_utils",),
}
# likewise its functions that edit datasets
TOOL_HOMES = {"aggregate_datasets": ("aggregate", "dataset_tools")}
# they write meta/ by inner parts of LeRobot's class
WRITERS = ("aggregate", "dataset_tools", "lerobot_dataset", "streaming_dataset")


class VideoEncodingManager:
    """Finalizes a recording at the end of a ``with`` block, also one that ends by an exception."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __enter__(self) -> VideoEncodingManager:
        return self

    def __exit__(self, *error: Any) -> None:
        self.dataset.__exit__(*error)


def install() -> None:
    """Put stepwell's classes in the place of LeRobot's, in all modules of ``lerobot``, for this process.

    After it ``lerobot.datasets.LeRobotDataset`` is `stepwell.lerobot.LeRobotDataset`, likewise
    ``LeRobotDatasetMetadata``, ``MultiLeRobotDataset``, ``StreamingLeRobotDataset`` and ``EpisodeAwareSampler``, for
    ``make_dataset``, for LeRobot's scripts, and for modules that are imported later. `python -m stepwell.lerobot
    MODULE ...` runs a module of LeRobot so. May be called twice.

    Raises:
        MissingDependencyError: lerobot is not installed.

    Notes:
        Likewise the functions of ``dataset_tools`` and ``aggregate_datasets``. Readers and writers of datasets are
        instances of LeRobot's ``DatasetReader`` and ``DatasetWriter`` then; where it has a cache of its own, files of
        the hub are fetched by the functions of its modules, to there or to ``root``. What was imported before by
        modules that are not lerobot's own is not changed. In lerobot before 0.6 its own ``EpisodeAwareSampler`` stays,
        with its orders; before 0.5.1 ``add_frame`` goes on with a dataset that was opened to be read, as it does there.
    """
    try:
        datasets = import_module("lerobot.datasets")
    except ImportError as error:
        raise MissingDependencyError(f"lerobot is not installed ({error}). Type: pip install lerobot") from error
    tools = {name: TOOL_HOMES.get(name, ("dataset_tools",)) for name in TOOLS}
    for name, homes in {**HOMES, **tools}.items():
        home, theirs = _find(datasets, name, homes)
        ours = _ours(name)
        if theirs is None or theirs is ours or _is_another(name, theirs):
            continue
        if name == "LeRobotDatasetMetadata":
            ours.lerobots_class = theirs
        if name == "LeRobotDataset":
            ours.goes_on_when_opened = not hasattr(theirs, "resume")
            _take_parts(datasets, ours)
        _replace(name, theirs, ours, {f"{datasets.__name__}.{each}" for each in WRITERS} - {home})


def _take_parts(datasets: Any, dataset: Any) -> None:
    """Let datasets have readers and writers that are LeRobot's, too, and its way to the hub, where it has them."""
    from stepwell.lerobot.installed import LerobotHub, reader_class, writer_class

    _, reader = _find(datasets, "DatasetReader", ("dataset_reader",))
    _, writer = _find(datasets, "DatasetWriter", ("dataset_writer",))
    if reader is not None and writer is not None:
        dataset.reader_class, dataset.writer_class = reader_class(reader), writer_class(writer)
    homes: list[Any] = [getattr(datasets, home, None) for home in ("dataset_metadata", "lerobot_dataset")]
    if all(hasattr(home, name) for home in homes for name in ("snapshot_download", "HF_LEROBOT_HUB_CACHE")):
        _ours("LeRobotDatasetMetadata").lerobots_hub = LerobotHub(*homes)


def _is_another(name: str, theirs: Any) -> bool:
    """Return whether a class of LeRobot's is to stay: a sampler without a seed, whose orders torch draws."""
    return name == "EpisodeAwareSampler" and "seed" not in inspect.signature(theirs).parameters


def _find(datasets: Any, name: str, homes: tuple[str, ...]) -> tuple[str, Any]:
    """Return the module that defines a class of LeRobot, and the class."""
    for home in homes:
        try:
            module = import_module(f"{datasets.__name__}.{home}")
        except ModuleNotFoundError:
            continue
        theirs = getattr(module, name, None)
        if theirs is not None:
            return module.__name__, theirs
    return "", None


def _ours(name: str) -> Any:
    return VideoEncodingManager if name == "VideoEncodingManager" else getattr(import_module("stepwell.lerobot"), name)


def _replace(name: str, theirs: Any, ours: Any, writers: set[str]) -> None:
    """Replace a class by name in the modules that have it."""
    for module_name, module in list(sys.modules.items()):
        is_lerobots = module_name.partition(".")[0] == "lerobot"
        is_kept = name == "LeRobotDatasetMetadata" and module_name in writers
        if is_lerobots and not is_kept and vars(module).get(name) is theirs:
            setattr(module, name, ours)
