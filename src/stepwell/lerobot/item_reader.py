"""What LeRobot's code asks of ``dataset.reader``, of a dataset that is read by windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.lerobot.dataset import LeRobotDataset
    from stepwell.windows import WindowReader

__all__ = ["ItemReader"]


class ItemReader:
    """The reader of a dataset's windows, and the names that LeRobot's ``DatasetReader`` has.

    Everything else, ``index`` and ``read`` among it, is that of the `stepwell.WindowReader`.
    """

    def __init__(self, dataset: LeRobotDataset, windows: WindowReader) -> None:
        self._dataset, self.windows = dataset, windows

    def __getattr__(self, name: str) -> Any:
        # not found on the way of a copy either
        if name == "windows":
            raise AttributeError(name)
        return getattr(self.windows, name)

    def __repr__(self) -> str:
        return repr(self.windows)

    @property
    def num_frames(self) -> int:
        """The number of items."""
        return self._dataset.num_frames

    @property
    def num_episodes(self) -> int:
        """The number of episodes that were selected."""
        return self._dataset.num_episodes

    @property
    def episodes(self) -> list[int] | None:
        """The numbers of the episodes that were selected; None for all."""
        return self._dataset.episodes

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """Key to steps from the item's."""
        return self._dataset.delta_indices

    @property
    def hf_dataset(self) -> Any:
        """See `LeRobotDataset.hf_dataset`; others that are set are those of the dataset, too, and change no items."""
        return self._dataset.hf_dataset

    @hf_dataset.setter
    def hf_dataset(self, rows: Any) -> None:
        self._dataset.hf_dataset = rows

    @property
    def _absolute_to_relative_idx(self) -> dict[int, int] | None:
        return self._dataset.absolute_to_relative_idx

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """See `LeRobotDataset.set_image_transforms`."""
        self._dataset.set_image_transforms(image_transforms)

    def clear_image_transforms(self) -> None:
        """See `LeRobotDataset.clear_image_transforms`."""
        self._dataset.clear_image_transforms()

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return an item."""
        return self._dataset[idx]

    def get_episodes_file_paths(self) -> list[Path]:
        """Return the paths of the parquet and mp4 files of the episodes, relative to the root, each once.

        Raises:
            WindowError: a store that is no dataset's directory.
        """
        from stepwell.lerobot.hub import needed_files

        return [Path(name) for name in needed_files(self._dataset.selected_files)]
