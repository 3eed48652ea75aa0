"""The weights of mixup, by numba's generator: its numbers for a seed are those of FFCV's code; quasi-random orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["beta_weights", "draw_from_pages"]


@kernel
def beta_weights(seed: Any, alpha: Any, number: Any, size: Any) -> Any:
    """Return weights of a beta distribution, float64 [size]: ``number`` draws, one for all or one for each.

    Args:
        seed: int64.
        alpha: float64, both parameters.
        number: int64, 1 or ``size``.
        size: int64.
    """
    np.random.seed(seed)
    weights = np.empty(size, np.float64)
    for i in range(number):
        weights[i] = np.random.beta(alpha, alpha)
    for i in range(number, size):
        weights[i] = weights[0]
    return weights


@kernel
def draw_from_pages(samples: Any, starts: Any, pages: Any, draws: Any, opened: Any, out: Any) -> None:  # noqa: PLR0917
    """Draw each sample once, each time the next one of a random page of those that are open.

    Args:
        samples: int64 [n], page after page.
        starts: int64 [P + 1], where each page begins; changed.
        pages: int64 [P], in which order pages are opened.
        draws: float64 [n], 0 to 1: which of the open pages.
        opened: int64 [k], for the pages that are open at once.
        out: int64 [n], written.
    """
    stops = starts[1:].copy()
    number, waiting = 0, 0
    for i in range(samples.size):
        while number < opened.size and waiting < pages.size:
            opened[number] = pages[waiting]
            number += 1
            waiting += 1
        place = min(int(draws[i] * number), number - 1)
        page = opened[place]
        out[i] = samples[starts[page]]
        starts[page] += 1
        if starts[page] == stops[page]:
            number -= 1
            opened[place] = opened[number]
