"""Ray Train: a loader for the rank of a worker, and its place in Ray's checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stepwell.errors import MissingDependencyError, StateError
from stepwell.json_text import parse_json
from stepwell.loader import Loader

try:
    import ray.train
except ImportError as error:
    raise MissingDependencyError.of("ray", "ray") from error

__all__ = ["prepare_loader", "restore_state", "save_state"]

# in a checkpoint's directory, beside what else the trainer keeps there
FILE = "stepwell-loader.json"


def prepare_loader(loader: Loader) -> Loader:
    """Return a loader of the same view, fields and settings for the rank of this worker of Ray Train.

    Args:
        loader: for one rank of one; it stays as it is.

    Returns:
        A loader with the rank and world size of ``ray.train.get_context()``, where ``loader`` is.

    Raises:
        StateError: ``loader`` has a rank of its own.
    """
    settings = loader.settings
    if settings.world_size != 1:
        raise StateError(
            f"a loader for rank {settings.rank} of {settings.world_size}. Give one without rank and world_size: they "
            "come from Ray Train."
        )
    context = ray.train.get_context()
    return loader.for_rank(context.get_world_rank(), context.get_world_size())


def save_state(loader: Any, directory: str | os.PathLike[str], name: str = FILE) -> Path:
    """Write where the consumer of a loader stands into a directory, which then becomes a checkpoint of Ray's.

    Args:
        loader: anything with ``state_dict()``: a `stepwell.Loader` or `stepwell.ReplayLoader`. That of one rank does
            for all.
        directory: which exists.
        name: of the file; one for each loader.

    Returns:
        The path of the file, at most 1 KiB of JSON.
    """
    path = Path(directory, name)
    path.write_text(json.dumps(loader.state_dict()), encoding="utf-8")
    return path


def restore_state(loader: Any, checkpoint: Any, name: str = FILE) -> bool:
    """Let the next ``for`` over a loader go on where `save_state` was called.

    Args:
        loader: over the same anchors in the same order, with any rank.
        checkpoint: of ``ray.train.get_checkpoint()``, which is None in a first run, or a directory.
        name: of the file.

    Returns:
        Whether there was a checkpoint.

    Raises:
        StateError: a checkpoint without a state of a loader, or of another one.
    """
    if checkpoint is None:
        return False
    if not isinstance(checkpoint, ray.train.Checkpoint):
        checkpoint = ray.train.Checkpoint.from_directory(os.fspath(checkpoint))
    with checkpoint.as_directory() as directory:
        path = Path(directory, name)
        if not path.is_file():
            raise StateError(f"no {name} in the checkpoint {checkpoint}. Call save_state() before it is reported.")
        try:
            state = parse_json(path.read_bytes())
        except ValueError as error:
            raise StateError(f"{name} in the checkpoint {checkpoint} is damaged: {error}.") from error
        loader.load_state_dict(state)
    return True
