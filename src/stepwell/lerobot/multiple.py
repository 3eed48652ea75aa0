"""Several LeRobot datasets as one: the features that all of them have."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.lerobot.dataset import LeRobotDataset, LoaderOptions, Source, TorchDataset, item_loader
from stepwell.lerobot.items import DATASET_INDEX, DepthPlanes, ItemFormat, ItemRows
from stepwell.lerobot.meta_files import SUBTASK_INDEX
from stepwell.loader import Loader
from stepwell.loader.memory import import_torch
from stepwell.order import mixed
from stepwell.schema import Feature
from stepwell.store.statistics import has_statistics
from stepwell.windows import Field, View
from stepwell.windows.fields import schema_of

if TYPE_CHECKING:
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import Order

__all__ = ["MultiLeRobotDataset"]

logger = logging.getLogger(__name__)


class MultiLeRobotDataset(TorchDataset):  # type: ignore[misc]  # Any where torch is not looked at
    """Several datasets, one after the other, with the features that all of them have.

    An item is that of its `LeRobotDataset`, without the features that another one lacks, and with ``dataset_index``.

    Args:
        repo_ids: what `LeRobotDataset` takes, or datasets that were made already.
        root: directory that has a directory of each name. Default: each is looked for by itself.
        episodes: name to numbers of episodes; a name that it lacks has all.
        image_transforms: as for `LeRobotDataset`, and so the others.
        delta_timestamps: in seconds, hence in steps of each dataset's own fps.
        tolerances_s: name to seconds; 1e-4 for a name that it lacks.
        download_videos: whether mp4 files are fetched.
        video_backend: of LeRobot's class; of no meaning here.
        lerobot_arguments: others of `LeRobotDataset`, for all.

    Attributes:
        datasets: the datasets.
        repo_ids: their names.
        image_transforms: as given, or set since.
        disabled_features: names of features that not all of them have; items do not have them.

    Raises:
        WindowError: no dataset; or a name in ``episodes`` or ``tolerances_s`` that is none of ``repo_ids``.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> stores = [tiny_store(f"{tempfile.mkdtemp()}/tiny.well", lengths=(4, 6)) for _ in range(2)]
        >>> both = MultiLeRobotDataset(stores)
        >>> len(both), both[13]["dataset_index"], both[13]["index"]
        (20, tensor(1), tensor(3))

    Notes:
        As `LeRobotDataset`: picklable, for workers and threads. Which dataset an item is of is found by bisection.
    """

    def __init__(  # noqa: PLR0917
        self,
        repo_ids: Sequence[Source | LeRobotDataset],
        root: str | os.PathLike[str] | None = None,
        episodes: Mapping[str, Sequence[int]] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerances_s: Mapping[str, float] | None = None,
        download_videos: bool = True,
        video_backend: str | None = None,
        **lerobot_arguments: Any,
    ) -> None:
        if isinstance(repo_ids, str) or not repo_ids:
            raise WindowError(f"repo_ids={repo_ids!r} are no datasets. Give a list of at least one.")
        _check_names("episodes", episodes, repo_ids)
        _check_names("tolerances_s", tolerances_s, repo_ids)
        self.datasets = [
            source
            if isinstance(source, LeRobotDataset)
            else LeRobotDataset(
                source,
                None if root is None else Path(root, str(source)),
                episodes=(episodes or {}).get(str(source)),
                image_transforms=image_transforms,
                delta_timestamps=delta_timestamps,
                tolerance_s=(tolerances_s or {}).get(str(source), 1e-4),
                download_videos=download_videos,
                **lerobot_arguments,
            )
            for source in repo_ids
        ]
        self.image_transforms = image_transforms
        self.repo_ids = [dataset.repo_id for dataset in self.datasets]
        self.disabled_features = self._disable()
        self._stops = np.cumsum([len(dataset) for dataset in self.datasets])

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Return an item; a negative number counts from the end."""
        return dict(self.__getitems__([idx])[0])

    def __getitems__(self, indices: Iterable[int]) -> ItemRows:
        """Return several items, read at once from each dataset that they are of."""
        numbers = np.array([operator.index(number) for number in indices], np.int64)
        outside = (numbers < -len(self)) | (numbers >= len(self))
        if outside.any():
            raise IndexError(f"no item {numbers[outside][0]} among {len(self)}.")
        numbers %= len(self)
        which = np.searchsorted(self._stops, numbers, side="right")
        present = np.unique(which).tolist()
        places = [np.flatnonzero(which == number) for number in present]
        parts = [self._part(k, numbers[at]) for k, at in zip(present, places, strict=True)]
        if len(parts) == 1:
            return ItemRows(parts[0], len(numbers))
        back = np.argsort(np.concatenate(places))
        return ItemRows({key: _merge([part[key] for part in parts], back) for key in parts[0]}, len(numbers))

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """Do other transforms of images in all datasets from the next item on; None: none.

        Raises:
            TypeError: it is no function.
        """
        for dataset in self.datasets:
            dataset.set_image_transforms(image_transforms)
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Do no transforms of images any more."""
        self.set_image_transforms(None)

    @property
    def _datasets(self) -> list[LeRobotDataset]:
        """`datasets`, by the name that LeRobot's class has for them."""
        return self.datasets

    @property
    def num_frames(self) -> int:
        """The number of items."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """The number of episodes that were selected, of all datasets."""
        return sum(dataset.num_episodes for dataset in self.datasets)

    @property
    def fps(self) -> int | float:
        """Rows a second.

        Raises:
            WindowError: datasets of several.
        """
        found = sorted({dataset.fps for dataset in self.datasets})
        if len(found) > 1:
            raise WindowError(f"datasets of {', '.join(f'{fps:g}' for fps in found)} fps. Ask each of `datasets`.")
        return found[0]

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """The common features, as the first dataset describes them."""
        return {k: each for k, each in self.datasets[0].features.items() if k not in self.disabled_features}

    @property
    def camera_keys(self) -> list[str]:
        """Names of the common cameras."""
        return [key for key, each in self.features.items() if each["dtype"] in ("image", "video")]

    @property
    def video_frame_keys(self) -> list[str]:
        """Names of the common cameras that the first dataset stores as videos."""
        return [key for key, each in self.features.items() if each["dtype"] == "video"]

    @property
    def repo_id_to_index(self) -> dict[str, int]:
        """Name of a dataset to its ``dataset_index``."""
        return {name: number for number, name in enumerate(self.repo_ids)}

    @cached_property
    def stats(self) -> dict[str, dict[str, Any]]:
        """Statistics of the common features over the selected episodes; computed from the data when first asked for."""
        from stepwell.lerobot.statistics import StatisticsSum, as_lerobot, info_of, summaries_of

        schemas = [schema_of(dataset.view.stores[0]) for dataset in self.datasets]
        named = {name: [schema[name] for schema in schemas if name in schema] for name in self.features}
        chosen = {name: each for name, each in named.items() if len(each) == len(schemas) and _are_summed(each)}
        total = StatisticsSum()
        for number, dataset in enumerate(self.datasets):
            total.add(summaries_of(dataset.view, {name: each[number] for name, each in chosen.items()}))
        return {name: as_lerobot(found, info_of(name, chosen[name][0])) for name, found in total.result().items()}

    def loader(
        self,
        batch_size: int = 64,
        *,
        weights: Sequence[float] | None = None,
        order: Literal["sequential", "random", "pooled"] | Order | None = None,
        images: Literal["uint8", "float32"] = "uint8",
        transform: WholeTransform = (),
        **options: Unpack[LoaderOptions],
    ) -> Loader:
        """Return a loader of batches of all datasets; see `LeRobotDataset.loader`.

        Args:
            batch_size: items a batch.
            weights: shares of the datasets in every batch, in proportion (`stepwell.mixed`); default: each has as many
                as it has items.
            order: as for `stepwell.Loader`, instead of ``weights``; "random" by default.
            images: "uint8" or "float32".
            transform: of the whole batch.
            options: further ones of `stepwell.Loader`.

        Raises:
            WindowError: features that differ in shape or dtype, deltas that are other steps in another dataset,
                ``image_transforms``, a dataset without index columns, or both weights and order.
        """
        if weights is not None and order is not None:
            raise WindowError("weights and order were both given. Give order=mixed(weights, order=...).")
        chosen = mixed(weights, seed=options.get("seed", 0)) if weights is not None else order or "random"
        made = self._item_format(images)
        return item_loader(self._view, made, batch_size, chosen, transform, options)

    def __repr__(self) -> str:
        return (
            f"<MultiLeRobotDataset {', '.join(self.repo_ids)}  {self.num_episodes:,} episodes  {len(self):,} items  "
            f"{', '.join(self.features)}>"
        )

    @property
    def _view(self) -> View:
        """The selected episodes of all datasets."""
        starts = np.cumsum([0] + [len(dataset.view.parts[0].table) for dataset in self.datasets])
        chosen = [dataset.view.episode_index + start for dataset, start in zip(self.datasets, starts, strict=False)]
        return View([dataset.view.stores[0] for dataset in self.datasets], np.concatenate(chosen).tolist())

    def _disable(self) -> set[str]:
        """Return the features that not all datasets have, and log them."""
        common = set.intersection(*(set(dataset.features) for dataset in self.datasets))
        disabled: set[str] = set()
        for dataset in self.datasets:
            extra = set(dataset.features) - common
            if extra:
                logger.warning("%s: left out %s, which not all datasets have.", dataset.repo_id, sorted(extra))
            disabled |= extra
        return disabled

    @cached_property
    def _has_subtasks(self) -> bool:
        """Whether all datasets have texts of subtasks."""
        has_texts = all(dataset.meta.subtasks is not None for dataset in self.datasets)
        return has_texts and SUBTASK_INDEX not in self.disabled_features

    def _part(self, number: int, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the columns of items of one dataset, counted over all."""
        dataset = self.datasets[number]
        columns = dataset.__getitems__((indices - (self._stops[number] - len(dataset))).tolist()).columns
        left_out = self.disabled_features | {f"{key}_is_pad" for key in self.disabled_features}
        left_out |= set() if self._has_subtasks else {"subtask"}
        kept = {key: column for key, column in columns.items() if key not in left_out}
        return {**kept, DATASET_INDEX: import_torch().full((len(indices),), number)}

    def _item_format(self, images: Literal["uint8", "float32"]) -> ItemFormat:
        """Return how batches of all datasets are read."""
        if any(dataset.delta_indices != self.datasets[0].delta_indices for dataset in self.datasets):
            raise WindowError(
                "delta_timestamps are other steps in another dataset, and a batch has one number of steps for all. Use "
                "datasets of one fps, or a DataLoader."
            )
        formats = [dataset.item_format("uint8_view" if images == "uint8" else images) for dataset in self.datasets]
        first = formats[0]
        fields = {key: field for key, field in first.fields.items() if key not in self.disabled_features}
        for dataset, made in zip(self.datasets, formats, strict=True):
            missing = [key for key in fields if made.fields[key].source != key]
            if missing:
                raise WindowError(
                    f"{dataset.repo_id} stores no {', '.join(missing)}, and ids of steps mean others in another store. "
                    "Use a DataLoader, or stores that were converted from LeRobot datasets."
                )
            others = [k for k in fields if _is_depth(made.makers.get(k)) and made.makers[k] != first.makers.get(k)]
            if others:
                raise WindowError(
                    f"depth maps {', '.join(others)} of {dataset.repo_id} have other codes or another unit than those "
                    f"of {self.datasets[0].repo_id}. Use a DataLoader, or write one dataset anew."
                )
        left_out = self.disabled_features | {f"{key}_is_pad" for key in self.disabled_features}
        return replace(
            first,
            fields={**fields, DATASET_INDEX: Field("store_index")},
            keys=tuple(key for key in first.keys if key not in left_out),
            texts=first.texts - self.disabled_features,
            tasks=tuple(made.tasks[0] for made in formats),
            subtasks=tuple(made.subtasks[0] for made in formats) if self._has_subtasks else (),
            makers={key: make for key, make in first.makers.items() if key in fields},
            languages=tuple(key for key in first.languages if key not in self.disabled_features),
        )


def _check_names(argument: str, named: Mapping[str, Any] | None, repo_ids: Sequence[Any]) -> None:
    """Refuse names of no dataset, whose episodes or tolerances would be ignored."""
    known = [str(source) for source in repo_ids if not isinstance(source, LeRobotDataset)]
    unknown = [name for name in named or {} if name not in known]
    if unknown:
        raise WindowError(
            f"{argument} of {', '.join(map(repr, unknown))}, and there is no such dataset to be opened. There are: "
            f"{', '.join(known) or 'only datasets that were made already'}."
        )


def _is_depth(make: Any) -> bool:
    return isinstance(make, DepthPlanes)


def _are_summed(features: Sequence[Feature]) -> bool:
    """Return whether statistics of all datasets can be added up."""
    return (
        all(has_statistics(each) and 0 not in each.shape for each in features)
        and len({each.fixed_shape[-1:] for each in features}) == 1
    )


def _merge(columns: Sequence[Any], back: npt.NDArray[np.int64]) -> Any:
    """Return the column of a batch from those of its datasets, in the order of the batch."""
    torch = import_torch()
    if all(isinstance(column, torch.Tensor) for column in columns):
        if len({(column.shape[1:], column.dtype) for column in columns}) == 1:
            return torch.cat(list(columns))[torch.from_numpy(back)]
        columns = [column.unbind(0) for column in columns]
    values = [value for column in columns for value in column]
    return [values[place] for place in back.tolist()]
