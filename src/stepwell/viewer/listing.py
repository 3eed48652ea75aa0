"""The list of episodes, a page at a time, from the index alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepwellError
from stepwell.store.episodes import EpisodeTable
from stepwell.store.marks import MARK_VALUES
from stepwell.windows.conditions import Condition, facts_of

__all__ = ["ENDS", "MAX_PAGE", "SORTS", "choose_episodes", "end_of", "list_episodes"]

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
    where: str = "",
    mark: str = "",
) -> dict[str, Any]:
    """Return ``total`` (episodes that pass) and ``episodes``: one page of them.

    Metadata is JSON text, read for the page alone unless ``where`` asks for it.

    Args:
        table: of a store.
        first: place of the page's first episode among those that pass, >= 0.
        count: episodes of the page, 1 to MAX_PAGE.
        sort: one of SORTS; equal ones stay in the order of their index.
        descending: the largest first.
        end: one of ENDS, or "" for all.
        min_length: steps.
        where: see `choose_episodes`.
        mark: see `choose_episodes`.

    Raises:
        StepwellError: an argument is none of those.
    """
    if sort not in SORTS or first < 0 or not 1 <= count <= MAX_PAGE:
        raise StepwellError(
            f"sort={sort!r}, first={first}, count={count}. Allowed: sort of {', '.join(SORTS)}; first >= 0; count 1 to "
            f"{MAX_PAGE}."
        )
    chosen = choose_episodes(table, end=end, min_length=min_length, where=where, mark=mark)
    keys = {"index": chosen, "length": table.length[chosen], "time": table.time_ns[chosen]}[sort]
    order = np.argsort(-keys if descending else keys, kind="stable")
    page = chosen[order[first : first + count]]
    return {"total": len(chosen), "episodes": [_describe(table, int(index)) for index in page]}


def choose_episodes(
    table: EpisodeTable, *, end: str = "", min_length: int = 0, where: str = "", mark: str = ""
) -> npt.NDArray[np.int64]:
    """Return the numbers of the episodes that pass, int64, ascending.

    Args:
        table: of a store.
        end: one of ENDS, or "" for all.
        min_length: steps.
        where: a condition on metadata, length and end, see `Condition`; "" for all.
        mark: one of MARK_VALUES, "none" for episodes without one, or "" for all.

    Raises:
        StepwellError: an argument is none of those.
        WindowError: a condition that cannot be parsed.
    """
    if mark not in ("", "none", *MARK_VALUES):
        raise StepwellError(f"mark={mark!r}. Allowed: {', '.join(MARK_VALUES)}, none, or nothing for all.")
    if end not in ("", *ENDS):
        raise StepwellError(f"end={end!r}. Allowed: {', '.join(ENDS)} or none.")
    passing = table.length >= min_length
    if end:
        passing &= getattr(table, end)
    chosen: npt.NDArray[np.int64] = np.flatnonzero(passing)
    condition = Condition(where) if where.strip() else None
    if condition is None and not mark:
        return chosen
    names = {"mark"} if mark else set()
    if condition is not None:
        names |= condition.names
    wanted = "" if mark == "none" else mark

    def passes(facts: dict[str, Any]) -> bool:
        return (not mark or facts.get("mark", "") == wanted) and (condition is None or condition(facts))

    return np.array([i for i in chosen.tolist() if passes(facts_of(table, i, names))], np.int64)


def _describe(table: EpisodeTable, index: int) -> dict[str, Any]:
    metadata = dict(table.metadata(index))
    return {
        "index": index,
        "mark": str(metadata.pop("mark", "")),
        "length": int(table.length[index]),
        "end": end_of(table, index),
        "metadata": json.dumps(metadata, default=str, ensure_ascii=False),
    }


def end_of(table: EpisodeTable, index: int) -> str:
    """Return how an episode ended, as the page says it."""
    return ", ".join(end for end in ENDS if getattr(table, end)[index]).replace("is_open", "open")
