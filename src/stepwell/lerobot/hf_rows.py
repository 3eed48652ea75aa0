"""The rows of a LeRobot dataset as a ``datasets.Dataset``, as LeRobot's ``hf_dataset`` has them: no videos, no windows.

Source: the features and the conversion to tensors of lerobot 0.4.4 and 0.6.2 (``get_hf_features_from_features``,
``hf_transform_to_torch``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.lerobot.info import LANGUAGE
from stepwell.lerobot.language import LANGUAGE_COLUMNS, hf_type
from stepwell.lerobot.meta_tables import import_lerobots
from stepwell.loader.memory import import_torch

if TYPE_CHECKING:
    from stepwell.lerobot.metadata import Metadata

__all__ = ["read_rows"]


def read_rows(metadata: Metadata, features: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the rows of the selected episodes; ``features`` as info.json describes them."""
    datasets = import_lerobots("datasets")
    selected, episodes = metadata.selected, metadata.episodes.index
    files = [str(path) for path in metadata.data_files(selected)]
    types = datasets.Features(
        {name: _type_of(datasets, name, each) for name, each in features.items() if each["dtype"] != "video"}
    )
    chosen = None if len(selected) == len(episodes) else [("episode_index", "in", episodes[selected].tolist())]
    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        rows = datasets.Dataset.from_parquet(files, features=types, columns=list(types), filters=chosen)
    finally:
        if had_bars:
            datasets.enable_progress_bars()
    rows.set_transform(_to_tensors)
    return rows


def _type_of(datasets: Any, name: str, feature: Mapping[str, Any]) -> Any:
    if feature["dtype"] == "image":
        return datasets.Image()
    if feature["dtype"] == LANGUAGE:
        return datasets.Features.from_dict({name: hf_type(name)})[name]
    value, shape = datasets.Value(feature["dtype"]), tuple(feature["shape"])
    if shape == (1,):
        return value
    if len(shape) == 1:
        return datasets.Sequence(value, length=shape[0])
    arrays = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D, 5: datasets.Array5D}
    return arrays[len(shape)](shape=shape, dtype=feature["dtype"])


def _to_tensors(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {
        name: values if name in LANGUAGE_COLUMNS else [_to_tensor(value) for value in values]
        for name, values in batch.items()
    }


def _to_tensor(value: Any) -> Any:
    """Return a value as LeRobot's items have it: images are floats of 0 to 1, channels first; depth as recorded."""
    torch = import_torch()
    if value is None or isinstance(value, str):
        return value
    if hasattr(value, "getbands"):
        pixels = np.array(value)
        planes = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
        floats = planes.astype(np.float32)
        return torch.from_numpy(floats / np.float32(255) if pixels.dtype == np.uint8 else floats)
    return torch.tensor(value)
