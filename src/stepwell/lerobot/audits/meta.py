"""Checks of the tables under ``meta/`` alone: order, repetition, totals."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepwell.lerobot.audits.places import Places
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject

__all__ = ["check_episode_order", "check_task_order", "check_totals"]

EPISODE_ORDER = Rule(
    "episodes-order",
    "error",
    "Sort the table by episode_index, numbered from 0 on without gaps: readers take row n for episode n.",
)
TASK_ORDER = Rule(
    "tasks-order",
    "error",
    "Sort the tasks by task_index, from 0 on without gaps: LeRobot takes row n for task n, and shows other texts.",
)
TASK_REPEATED = Rule("tasks-repeated", "warning", "Give each text one task_index, and map the steps' to it.")
TOTALS = Rule(
    "totals",
    "error",
    "Correct meta/info.json: LeRobot's length is its total_frames, and who records on numbers from its totals.",
)


def check_task_order(subject: Subject) -> None:
    """Look whether each task_index leads to its own text, and no text comes twice."""
    if subject.tasks is None:
        return
    numbers = [number for number, _ in subject.tasks]
    if subject.info.is_v3:
        wrong = [(place, number) for place, number in enumerate(numbers) if place != number]
        if wrong:
            subject.tally.add(TASK_ORDER, "", f"row {wrong[0][0]} of the tasks has task_index {wrong[0][1]}")
    else:
        # v2 readers look tasks up by their number
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        if twice:
            subject.tally.add(TASK_ORDER, "", f"task_index {twice[0]} is there twice")
    repeated = [text for text, count in Counter(text for _, text in subject.tasks).items() if count > 1]
    if repeated:
        subject.tally.add(TASK_REPEATED, "", f"the text {repeated[0]!r} has several task_index")


def check_episode_order(subject: Subject) -> None:
    """Look whether row n of the table of episodes is episode n."""
    number = subject.episodes.number
    wrong = np.flatnonzero(number != np.arange(len(number)))
    if len(wrong):
        detail = f"row {wrong[0]} of the table of episodes is episode {number[wrong[0]]}"
        subject.tally.add(EPISODE_ORDER, "", detail, number[wrong])


def check_totals(subject: Subject, num_rows: int, places: Places) -> None:
    """Compare the totals of ``meta/info.json`` with what is there.

    Args:
        subject: what is audited, all of it.
        num_rows: rows of all data files.
        places: of the episodes; where some have no rows, nothing is said of rows.
    """
    info, raw = subject.info, subject.info.raw
    found = {"total_episodes": len(subject.episodes)}
    if (places.length > 0).all():
        found["total_frames"] = num_rows
    if subject.tasks is not None:
        found["total_tasks"] = len(subject.tasks)
    if not info.is_v3:
        found["total_videos"] = len(info.video_keys) * len(subject.episodes)
    for name, number in found.items():
        if raw.get(name, number) != number:
            subject.tally.add(TOTALS, "", f"{name} is {raw[name]} in meta/info.json, there are {number}")
