"""What is done to chosen steps only, by their ids: other labels, and a pattern in images, to study poisoned data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.batch import BatchTransform, Samples, look_up

__all__ = ["Poison", "ReplaceLabel"]


class ReplaceLabel(BatchTransform):
    """Give chosen steps another label.

    Args:
        label: key of the labels, [B, *window].
        step_ids: of the chosen steps.
        value: their new label.
        step_key: key of ``Field("step_id")`` with the same offsets.

    Raises:
        WindowError: the keys are not there, or of different windows.
    """

    def __init__(self, label: str, step_ids: npt.ArrayLike, value: Any, *, step_key: str = "step_id") -> None:
        self.label = label
        self.step_ids = np.unique(np.asarray(step_ids, np.int64))
        self.value = value
        self.step_key = step_key

    def outputs(self, samples: Samples) -> Samples:
        """Return samples as they are."""
        labels, steps = look_up(samples, self.label, self), look_up(samples, self.step_key, self)
        if labels is not None and steps is not None and labels[0][: len(steps[0])] != steps[0]:
            raise WindowError(f"{self.label!r} {labels[0]} and {self.step_key!r} {steps[0]} are of different windows.")
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch with the labels of the chosen steps replaced."""
        is_chosen = np.isin(look_up(batch, self.step_key, self), self.step_ids)
        look_up(batch, self.label, self)[is_chosen] = self.value
        return batch


class Poison(BatchTransform):
    """Blend a pattern into the images of chosen steps.

    Args:
        image: key of the images, [B, *window, H, W, C].
        step_ids: of the chosen steps.
        pattern: [H, W, C], or what broadcasts to it, in the image's units.
        alpha: the part of the pattern, 0 to 1: one number, or [H, W, 1].
        step_key: key of ``Field("step_id")`` with the same offsets.

    Raises:
        WindowError: the keys are not there, or of different windows.

    Notes:
        Integers are rounded, and cut off at the ends of their range.
    """

    def __init__(
        self,
        image: str,
        step_ids: npt.ArrayLike,
        pattern: npt.ArrayLike,
        alpha: npt.ArrayLike,
        *,
        step_key: str = "step_id",
    ) -> None:
        self.image = image
        self.step_ids = np.unique(np.asarray(step_ids, np.int64))
        self.pattern = np.asarray(pattern, np.float32)
        self.alpha = np.asarray(alpha, np.float32)
        self.step_key = step_key

    def outputs(self, samples: Samples) -> Samples:
        """Return samples as they are."""
        images, steps = look_up(samples, self.image, self), look_up(samples, self.step_key, self)
        if images is not None and steps is not None and images[0][:-3] != steps[0]:
            raise WindowError(f"{self.image!r} {images[0]} and {self.step_key!r} {steps[0]} are of different windows.")
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch with the pattern in the images of the chosen steps."""
        images = look_up(batch, self.image, self)
        is_chosen = np.isin(look_up(batch, self.step_key, self), self.step_ids)
        if not is_chosen.any():
            return batch
        mixed = images[is_chosen] * (1 - self.alpha) + self.pattern * self.alpha
        if images.dtype.kind in "iu":
            limits = np.iinfo(images.dtype)
            mixed = np.clip(np.rint(mixed), limits.min, limits.max)
        images[is_chosen] = mixed
        return batch
