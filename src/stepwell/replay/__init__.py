"""Replay: tables of items over a store that grows, and loaders that sample them; see docs/replay.md.

The names used most are `stepwell.Table`, `stepwell.ReplayLoader` and `stepwell.TableWriter`; selectors, limiters,
patterns, conditions and learning targets are here.
"""

from stepwell.replay.checkpoints import checkpoint, load, restore, save
from stepwell.replay.contents import Sample
from stepwell.replay.drawing import importance_weights
from stepwell.replay.extensions import Extension
from stepwell.replay.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import (
    Condition,
    Pattern,
    at_episode_end,
    every_step,
    feature,
    is_end,
    step_index,
    steps_since_applied,
)
from stepwell.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, Uniform
from stepwell.replay.table_info import TableInfo
from stepwell.replay.tables import Table
from stepwell.replay.transitions import LearningTargets, sequence_fields, transition_fields
from stepwell.replay.writing import TableTarget, TableWriter

__all__ = [
    "Condition",
    "Extension",
    "Fifo",
    "LearningTargets",
    "Lifo",
    "Limiter",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Pattern",
    "Prioritized",
    "Queue",
    "ReplayLoader",
    "Sample",
    "SampleToInsertRatio",
    "Selector",
    "Stack",
    "Table",
    "TableInfo",
    "TableTarget",
    "TableWriter",
    "Uniform",
    "at_episode_end",
    "checkpoint",
    "every_step",
    "feature",
    "importance_weights",
    "is_end",
    "load",
    "restore",
    "save",
    "sequence_fields",
    "step_index",
    "steps_since_applied",
    "transition_fields",
]
