"""Segments, writers, episodes, statistics, recovery: the files of a store."""

from stepwell.store.episodes import EPISODE_DTYPE, Episode, EpisodeTable
from stepwell.store.layout import split_id, step_id
from stepwell.store.opening import create, open
from stepwell.store.rewrite import concatenate
from stepwell.store.samples import Samples
from stepwell.store.segments import Segment
from stepwell.store.store import Store
from stepwell.store.values import EncodedRows
from stepwell.store.vector_writer import VectorWriter
from stepwell.store.writer import Writer

__all__ = [
    "EPISODE_DTYPE",
    "EncodedRows",
    "Episode",
    "EpisodeTable",
    "Samples",
    "Segment",
    "Store",
    "VectorWriter",
    "Writer",
    "concatenate",
    "create",
    "open",
    "split_id",
    "step_id",
]
