"""Reverb's API by its names, over stepwell: change the import of ``reverb``; see docs/reverb.md."""

import sys

from stepwell.reverb import checkpointers, datasets, errors, rate_limiters, selectors
from stepwell.reverb import selectors as item_selectors
from stepwell.reverb import structured_writer as structured
from stepwell.reverb.client import Client
from stepwell.reverb.datasets import PatternDataset, ReplayDataset, TimestepDataset, TrajectoryDataset
from stepwell.reverb.errors import DeadlineExceededError, ReverbError
from stepwell.reverb.replay_sample import ReplaySample, SampleInfo
from stepwell.reverb.server import Server
from stepwell.reverb.specs import TensorSpec
from stepwell.reverb.structured_writer import StructuredWriter
from stepwell.reverb.tables import Table, TableInfo
from stepwell.reverb.tf_client import TFClient
from stepwell.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter
from stepwell.reverb.writer import Writer

__all__ = [
    "Client",
    "DeadlineExceededError",
    "PatternDataset",
    "ReplayDataset",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "StructuredWriter",
    "TFClient",
    "Table",
    "TableInfo",
    "TensorSpec",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "Writer",
    "checkpointers",
    "errors",
    "item_selectors",
    "rate_limiters",
    "selectors",
    "structured",
]

# modules that users of Reverb import by name
for _name, _module in {
    "item_selectors": selectors,
    "trajectory_dataset": datasets,
    "timestep_dataset": datasets,
    "pattern_dataset": datasets,
}.items():
    sys.modules[f"{__name__}.{_name}"] = _module
