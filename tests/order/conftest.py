"""An anchor index made of numbers, for the tests of orders: the fixture `make_index`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from stepwell.errors import FeatureNotFoundError


@dataclass
class FakeIndex:
    """Parts of episodes of so many anchors each; scalar features by name."""

    parts: Sequence[Sequence[int]]
    features: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def anchor_starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum([count for part in self.parts for count in part])]).astype(np.int64)

    @property
    def part_starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum([sum(part) for part in self.parts])]).astype(np.int64)

    @property
    def episode_starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *map(len, self.parts)]).astype(np.int64)

    @property
    def num_anchors(self) -> int:
        return sum(map(sum, self.parts))

    def read_steps(self, feature: str) -> npt.NDArray[np.float64]:
        if feature not in self.features:
            raise FeatureNotFoundError(feature)
        return np.array(self.features[feature], np.float64)


@pytest.fixture(scope="session")
def make_index() -> type[FakeIndex]:
    return FakeIndex
