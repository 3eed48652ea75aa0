"""LeRobot's functions that edit datasets, by its names and arguments; done by `stepwell.lerobot.edits`.

What is better than there: videos that are cut keep their packets, statistics are those of the rows that are left, an
edit in place keeps the old directory until the new one is there, and a dataset appears whole or not at all.

Source of names, defaults and messages: ``lerobot.datasets.dataset_tools`` and ``aggregate`` of lerobot 0.6.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_encoding import DEFAULT_GOP
from stepwell.errors import SchemaError
from stepwell.lerobot.depth import Quantization
from stepwell.lerobot.editing import Values, told_options
from stepwell.lerobot.edits import (
    Place,
    change_features,
    change_statistics,
    change_tasks,
    delete,
    merge,
    parts_of,
    split,
)
from stepwell.lerobot.info import DATA_FILES_MB, DEFAULT_CHUNKS_SIZE, ENCODERS, INDEX_FEATURES, VIDEO_FILES_MB
from stepwell.lerobot.mapped_stores import read_columns
from stepwell.lerobot.meta_view import lerobot_home
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.parquet_writing import plain_statistics
from stepwell.lerobot.relative_actions import relative_statistics
from stepwell.lerobot.video_edits import encode_images, reencode

__all__ = [
    "add_features",
    "aggregate_datasets",
    "convert_image_to_video_dataset",
    "delete_episodes",
    "merge_datasets",
    "modify_features",
    "modify_tasks",
    "recompute_stats",
    "reencode_dataset",
    "remove_feature",
    "split_dataset",
]

ACTION, STATE = "action", "observation.state"
LOG = logging.getLogger(__name__)
FEATURE_KEYS = {"dtype", "shape"}
REQUIRED = set(INDEX_FEATURES)


def delete_episodes(
    dataset: Any, episode_indices: Sequence[int], output_dir: Place | None = None, repo_id: str | None = None
) -> Any:
    """Write a dataset without some episodes; see `stepwell.lerobot.edits.delete`.

    Args:
        dataset: a `LeRobotDataset`, stepwell's or lerobot's.
        episode_indices: numbers of episodes.
        output_dir: of the new dataset; default: ``repo_id`` below ``$HF_LEROBOT_HOME``.
        repo_id: its name; default: that of the dataset with ``_modified``.

    Returns:
        The new dataset, of the same class and with the same options.

    Raises:
        ValueError: no numbers, numbers that are no episodes, or all of them.
    """
    if not episode_indices:
        raise ValueError("No episodes to delete")
    _check_numbers(dataset, episode_indices)
    if len(set(episode_indices)) == _metadata(dataset).info.total_episodes:
        raise ValueError("Cannot delete all episodes from dataset")
    repo_id = f"{dataset.repo_id}_modified" if repo_id is None else repo_id
    return _like(dataset, repo_id, delete(dataset.root, episode_indices, _output(output_dir, repo_id)))


def split_dataset(
    dataset: Any, splits: Mapping[str, float | Sequence[int]], output_dir: Place | None = None
) -> dict[str, Any]:
    """Write parts of a dataset as datasets of their own, ``output_dir/NAME``; see `stepwell.lerobot.edits.split`.

    Args:
        dataset: a `LeRobotDataset`.
        splits: by name: numbers of episodes, or a fraction.
        output_dir: of the directories; default: below ``$HF_LEROBOT_HOME``, by the name of the dataset.

    Raises:
        ValueError: nothing to split, an episode in several parts, fractions of more than 1.
    """
    if not splits:
        raise ValueError("No splits provided")
    parts = parts_of(_metadata(dataset).info.total_episodes, splits)
    for name in [name for name, part in parts.items() if not part and isinstance(splits[name], float)]:
        LOG.warning("Split '%s' has no episodes, skipping...", name)
        del parts[name]
    _check_numbers(dataset, [number for part in parts.values() for number in part])
    names = {name: f"{dataset.repo_id}_{name}" for name in parts}
    targets = {name: _output(None, names[name]) if output_dir is None else Path(output_dir, name) for name in parts}
    return {name: _like(dataset, names[name], root) for name, root in split(dataset.root, parts, targets).items()}


def merge_datasets(
    datasets: Sequence[Any],
    output_repo_id: str,
    output_dir: Place | None = None,
    concatenate_videos: bool = True,
    concatenate_data: bool = True,
) -> Any:
    """Write the episodes of several datasets as one; see `aggregate_datasets`."""
    if not datasets:
        raise ValueError("No datasets to merge")
    output_dir = _output(output_dir, output_repo_id)
    aggregate_datasets(
        [dataset.repo_id for dataset in datasets],
        output_repo_id,
        [dataset.root for dataset in datasets],
        output_dir,
        concatenate_videos=concatenate_videos,
        concatenate_data=concatenate_data,
    )
    return _like(datasets[0], output_repo_id, output_dir)


def aggregate_datasets(  # noqa: PLR0917
    repo_ids: Sequence[str],
    aggr_repo_id: str,
    roots: Sequence[Place] | None = None,
    aggr_root: Place | None = None,
    data_files_size_in_mb: float | None = None,
    video_files_size_in_mb: float | None = None,
    chunk_size: int | None = None,
    concatenate_videos: bool = True,
    concatenate_data: bool = True,
) -> None:
    """Write the episodes of several datasets as one; see `stepwell.lerobot.edits.merge`.

    Args:
        repo_ids: their names; directories below ``$HF_LEROBOT_HOME`` where ``roots`` says nothing.
        aggr_repo_id: name of the result.
        roots: their directories.
        aggr_root: directory of the result; default: ``aggr_repo_id`` below ``$HF_LEROBOT_HOME``.
        data_files_size_in_mb: from which on a parquet file is not added to; default 100.
        video_files_size_in_mb: from which on an mp4 file is not added to; default 200.
        chunk_size: files a directory; default 1000.
        concatenate_videos: whether small mp4 files are joined, by their packets.
        concatenate_data: whether small parquet files are joined.

    Raises:
        ValueError: datasets of different features, rates or robots.
    """
    home = lerobot_home()
    places = [home / name for name in repo_ids] if roots is None else [Path(root) for root in roots]
    sizes = (
        DATA_FILES_MB if data_files_size_in_mb is None else data_files_size_in_mb,
        VIDEO_FILES_MB if video_files_size_in_mb is None else video_files_size_in_mb,
    )
    target = merge(
        places,
        _output(aggr_root, aggr_repo_id),
        is_packed=(concatenate_videos, concatenate_data),
        sizes_mb=sizes,
        chunks_size=DEFAULT_CHUNKS_SIZE if chunk_size is None else chunk_size,
    )
    _warn_of_encoders(places, target)


def _warn_of_encoders(roots: Sequence[Path], target: Path) -> None:
    """Say which facts of videos the result does not have, since they differ."""
    first, whole = Metadata.load(roots[0]).info, Metadata.load(target).info
    for name in whole.video_keys:
        facts = whole.features[name].raw.get("info") or {}
        before = first.features[name].raw.get("info") or {}
        lost = [key for key, value in facts.items() if not value and value != before.get(key, ())]
        if lost:
            LOG.warning(
                "Merging heterogeneous or incomplete video encoder metadata for feature %s: %s are null.", name, lost
            )


def modify_features(
    dataset: Any,
    add_features: Mapping[str, tuple[Values, Mapping[str, Any]]] | None = None,
    remove_features: str | Sequence[str] | None = None,
    output_dir: Place | None = None,
    repo_id: str | None = None,
) -> Any:
    """Write a dataset with other features; see `stepwell.lerobot.edits.change_features`.

    Args:
        dataset: a `LeRobotDataset`.
        add_features: by name: values of all rows, or a function of (row, episode_index, frame_index); and the entry of
            info.json.
        remove_features: names.
        output_dir: of the new dataset; default: ``repo_id`` below ``$HF_LEROBOT_HOME``.
        repo_id: its name; default: that of the dataset with ``_modified``.

    Raises:
        ValueError: nothing to do, a feature that is there already, or one that is not; one that each dataset needs.
    """
    if add_features is None and remove_features is None:
        raise ValueError("Must specify at least one of add_features or remove_features")
    known = _metadata(dataset).info.features
    removed = [remove_features] if isinstance(remove_features, str) else list(remove_features or ())
    for name, (_, entry) in (add_features or {}).items():
        if name in known:
            raise ValueError(f"Feature '{name}' already exists in dataset")
        if not FEATURE_KEYS.issubset(entry):
            raise ValueError(f"feature_info for '{name}' must contain keys: {FEATURE_KEYS}")
    for name in removed:
        if name not in known:
            raise ValueError(f"Feature '{name}' not found in dataset")
    if not REQUIRED.isdisjoint(removed):
        raise ValueError(f"Cannot remove required features: {REQUIRED}")
    repo_id = f"{dataset.repo_id}_modified" if repo_id is None else repo_id
    root = change_features(dataset.root, added=add_features, removed=removed, target=_output(output_dir, repo_id))
    return _like(dataset, repo_id, root)


def add_features(
    dataset: Any,
    features: Mapping[str, tuple[Values, Mapping[str, Any]]],
    output_dir: Place | None = None,
    repo_id: str | None = None,
) -> Any:
    """Write a dataset with more features; see `modify_features`."""
    if not features:
        raise ValueError("No features provided")
    return modify_features(dataset, features, None, output_dir, repo_id)


def remove_feature(
    dataset: Any, feature_names: str | Sequence[str], output_dir: Place | None = None, repo_id: str | None = None
) -> Any:
    """Write a dataset without some features; see `modify_features`."""
    return modify_features(dataset, None, feature_names, output_dir, repo_id)


def modify_tasks(
    dataset: Any,
    new_task: str | None = None,
    episode_tasks: Mapping[int, str] | None = None,
    task_replacements: Mapping[str, str] | None = None,
) -> Any:
    """Give steps other tasks, in place; see `stepwell.lerobot.edits.change_tasks`.

    Args:
        dataset: a `LeRobotDataset`; it is returned, and has the new tasks.
        new_task: of all steps that the others say nothing of.
        episode_tasks: by the number of an episode.
        task_replacements: by the text that is replaced, step by step: an episode of several tasks keeps the others.

    Raises:
        ValueError: nothing to do, no such episode, or a text that no task has.
    """
    if not new_task and not episode_tasks and not task_replacements:
        # the words of 0.6 and of 0.4
        raise ValueError(
            "Must specify at least one of new_task, episode_tasks, or task_replacements. "
            "(Must specify at least one of new_task or episode_tasks)"
        )
    _check_numbers(dataset, list(episode_tasks or ()))
    change_tasks(dataset.root, task=new_task or None, episodes=episode_tasks, replaced=task_replacements)
    return _renewed(dataset)


def recompute_stats(  # noqa: PLR0917
    dataset: Any,
    skip_image_video: bool = True,
    relative_action: bool = False,
    relative_exclude_joints: Sequence[str] | None = None,
    chunk_size: int = 50,
    num_workers: int = 0,
) -> Any:
    """Compute the statistics again, in place; see `stepwell.lerobot.edits.change_statistics`.

    Args:
        dataset: a `LeRobotDataset`; it is returned, and has the new statistics.
        skip_image_video: whether those of cameras stay as they are.
        relative_action: take those of ``action`` from all chunks of actions, each minus the state at its beginning.
        relative_exclude_joints: parts of names of actions that stay as they are; default ``["gripper"]``.
        chunk_size: actions a chunk; chunks lie within an episode.
        num_workers: of no meaning here.

    Raises:
        WindowError: no episode is as long as a chunk (a ValueError).
    """
    metadata = _metadata(dataset)
    infos = metadata.info.features
    names = [name for name, info in infos.items() if not (info.is_text or name in INDEX_FEATURES)]
    names = [name for name in names if not (skip_image_video and infos[name].is_camera)]
    summed = {}
    if relative_action and ACTION in infos and STATE in infos:
        excluded = ["gripper"] if relative_exclude_joints is None else relative_exclude_joints
        summed[ACTION] = _relative_statistics(metadata, chunk_size, excluded)
        names.remove(ACTION)
    change_statistics(dataset.root, features=names, summed=summed)
    return _renewed(dataset)


def _relative_statistics(metadata: Metadata, chunk_size: int, excluded: Sequence[str]) -> dict[str, Any]:
    """Return the entry of stats.json of actions relative to the state at the beginning of their chunk."""
    info = metadata.info.features[ACTION]
    places = np.arange(len(metadata.episodes))
    columns = read_columns(metadata, places, [ACTION, STATE])
    parts = ((_rows(found[ACTION]), _rows(found[STATE])) for _, found in columns)
    return plain_statistics(relative_statistics(parts, chunk_size, excluded, info.feature.names), info)


def _rows(values: Any) -> npt.NDArray[np.float32]:
    return np.asarray(values, np.float32).reshape(len(values), -1)


def convert_image_to_video_dataset(  # noqa: PLR0917
    dataset: Any,
    output_dir: Place | None = None,
    repo_id: str | None = None,
    rgb_encoder: Any = None,
    depth_encoder: Any = None,
    episode_indices: Sequence[int] | None = None,
    num_workers: int = 4,
    max_episodes_per_batch: int | None = None,
    max_frames_per_batch: int | None = None,
) -> Any:
    """Write a dataset whose images are videos; see `stepwell.lerobot.video_edits.encode_images`.

    Args:
        dataset: a `LeRobotDataset` without videos.
        output_dir: of the new dataset; default: ``repo_id`` below ``$HF_LEROBOT_HOME``.
        repo_id: its name; default: that of the dataset with ``_video``.
        rgb_encoder: an ``RGBEncoderConfig`` of lerobot; default: AV1, as lerobot has it.
        depth_encoder: a ``DepthEncoderConfig`` of lerobot: codes of depth maps and ``g``; they are without loss.
        episode_indices: only these; default all.
        num_workers: processes.
        max_episodes_per_batch, max_frames_per_batch: of lerobot; of no meaning here: an image at a time is in memory.

    Raises:
        ValueError: the dataset has videos, or no images.
    """
    info = _metadata(dataset).info
    if info.video_keys:
        raise ValueError(f"This operation is for image datasets only. Video dataset provided: {dataset.repo_id}")
    if not info.image_keys:
        raise ValueError(f"No image keys found in dataset {dataset.repo_id}")
    repo_id = f"{dataset.repo_id}_video" if repo_id is None else repo_id
    root = encode_images(
        dataset.root,
        episodes=episode_indices,
        video=_video_options(rgb_encoder),
        depth=_depth_options(depth_encoder),
        target=_output(output_dir, repo_id),
        workers=num_workers,
    )
    return type(dataset)(repo_id=repo_id, root=root)


def reencode_dataset(
    dataset: Any,
    rgb_encoder: Any = None,
    depth_encoder: Any = None,
    encoder_threads: int | None = None,
    num_workers: int | None = None,
) -> Any:
    """Encode the videos anew, in place; see `stepwell.lerobot.video_edits.reencode`.

    Args:
        dataset: a `LeRobotDataset`; it is returned, and has the new videos.
        rgb_encoder: an ``RGBEncoderConfig`` of lerobot. Cameras that are encoded so already stay as they are.
        depth_encoder: a ``DepthEncoderConfig`` of lerobot; its ``g`` counts: codes of depth maps stay, without loss.
            None: depth maps stay as they are.
        encoder_threads: of no meaning here.
        num_workers: processes; default: this one.

    Raises:
        ValueError: no encoder.
    """
    if rgb_encoder is None and depth_encoder is None:
        raise ValueError("Either rgb_encoder or depth_encoder must be provided")
    metadata = _metadata(dataset)
    video, depth = _video_options(rgb_encoder), _depth_options(depth_encoder)
    depth = None if depth is None else {"gop": depth["gop"]}
    options_of = {key: depth if metadata.info.features[key].is_depth else video for key in metadata.info.video_keys}
    keys = [key for key, options in options_of.items() if options is not None and _differs(metadata, key, options)]
    if not keys:
        LOG.warning("Dataset has no videos to re-encode.")
        return dataset
    reencode(dataset.root, keys, video=video, depth=depth, workers=num_workers or 0)
    return _renewed(dataset)


def _differs(metadata: Metadata, key: str, options: Mapping[str, Any]) -> bool:
    known = told_options(metadata, key)
    return any(str(known.get(name)) != str(value) for name, value in options.items() if name != "pixel_format")


def _video_options(config: Any) -> dict[str, Any] | None:
    """Return the options of `stepwell.Video` that an encoder's configuration of lerobot means."""
    if config is None:
        return None
    encoder = ENCODERS.get(config.vcodec, config.vcodec)
    if getattr(config, "extra_options", None):
        raise SchemaError(f"extra_options={config.extra_options!r}: only vcodec, pix_fmt, g, crf and preset are taken.")
    found: dict[str, Any] = {"encoder": "av1" if encoder == "auto" else encoder}
    found |= {} if config.g is None else {"gop": config.g}
    found |= {} if config.crf is None else {"crf": config.crf}
    found |= {} if config.preset is None else {"preset": str(config.preset)}
    return found | ({"pixel_format": config.pix_fmt} if config.pix_fmt == "yuv444p" else {})


def _depth_options(config: Any) -> dict[str, Any] | None:
    """Return the codes of depth maps, and the group of pictures, that an encoder's configuration of lerobot means."""
    if config is None:
        return None
    return {name: getattr(config, name) for name in Quantization.__slots__} | {"gop": config.g or DEFAULT_GOP}


def _metadata(dataset: Any) -> Metadata:
    return Metadata.load(dataset.root)


def _check_numbers(dataset: Any, numbers: Sequence[int]) -> None:
    invalid = set(numbers) - set(range(_metadata(dataset).info.total_episodes))
    if invalid:
        raise ValueError(f"Invalid episode indices: {invalid}")


def _output(output_dir: Place | None, repo_id: str) -> Path:
    return lerobot_home() / repo_id if output_dir is None else Path(output_dir)


def _like(dataset: Any, repo_id: str, root: Place) -> Any:
    """Return a dataset of the same class, with the same options."""
    options = {name: getattr(dataset, name, None) for name in ("image_transforms", "delta_timestamps")}
    return type(dataset)(repo_id=repo_id, root=Path(root), tolerance_s=getattr(dataset, "tolerance_s", 1e-4), **options)


def _renewed(dataset: Any) -> Any:
    """Let a dataset see what its root has become."""
    fresh = _like(dataset, dataset.repo_id, dataset.root)
    vars(dataset).clear()
    vars(dataset).update(vars(fresh))
    return dataset
