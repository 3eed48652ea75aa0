"""The list of episodes, a page at a time, from the index alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepwellError
from stepwell.store.episodes import EpisodeTable

__all__ = ["ENDS", "MAX_PAGE", "SORTS", "list_episodes"]

ENDS = ("terminated", "truncated", "interrupted", "is_open")
SORTS = ("index", "length", "time")
MAX_PAGE = 500


def list_episodes(
    table: EpisodeTable,
    *,
    first: int = 0,
    count: int = 100,
    sort: str = "index",
    descending: bool = False,
    end: str = "",
    min_length: int = 0,
) -> dict[str, Any]:
    """Return ``total`` (episodes that pass) and ``episodes``: one page of them.

    Metadata is JSON text, read for the page alone.

    Args:
        table: of a store.
        first: place of the page's first episode among those that pass, >= 0.
        count: episodes of the page, 1 to MAX_PAGE.
        sort: one of SORTS; equal ones stay in the order of their index.
        descending: the largest first.
        end: one of ENDS, or "" for all.
        min_length: steps.

    Raises:
        StepwellError: an argument is none of those.
    """
    if sort not in SORTS or end not in ("", *ENDS) or first < 0 or not 1 <= count <= MAX_PAGE:
        raise StepwellError(
            f"sort={sort!r}, end={end!r}, first={first}, count={count}. Allowed: sort of {', '.join(SORTS)}; end of "
            f"{', '.join(ENDS)} or none; first >= 0; count 1 to {MAX_PAGE}."
        )
    passing = table.length >= min_length
    if end:
        passing &= getattr(table, end)
    chosen: npt.NDArray[np.int64] = np.flatnonzero(passing)
    keys = {"index": chosen, "length": table.length[chosen], "time": table.time_ns[chosen]}[sort]
    order = np.argsort(-keys if descending else keys, kind="stable")
    page = chosen[order[first : first + count]]
    return {"total": len(chosen), "episodes": [_describe(table, int(index)) for index in page]}


def _describe(table: EpisodeTable, index: int) -> dict[str, Any]:
    ends = [end for end in ENDS if getattr(table, end)[index]]
    return {
        "index": index,
        "length": int(table.length[index]),
        "end": ", ".join(ends).replace("is_open", "open"),
        "metadata": json.dumps(table.metadata(index), default=str, ensure_ascii=False),
    }
