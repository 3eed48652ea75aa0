"""Windows: fields, views of episodes, the index of anchors, and the reader that makes batches of positions."""

from stepwell.windows.blocks import Blocks, HeldRows, RowLoader
from stepwell.windows.fields import VIRTUAL_DTYPES, Field, ResolvedField, as_fields, resolve
from stepwell.windows.index import AnchorIndex
from stepwell.windows.plans import aligned_empty
from stepwell.windows.reader import PlaceReader, WindowReader
from stepwell.windows.sources import PlaceSource, ViewSource
from stepwell.windows.views import View

__all__ = [
    "VIRTUAL_DTYPES",
    "AnchorIndex",
    "Blocks",
    "Field",
    "HeldRows",
    "PlaceReader",
    "PlaceSource",
    "ResolvedField",
    "RowLoader",
    "View",
    "ViewSource",
    "WindowReader",
    "aligned_empty",
    "as_fields",
    "resolve",
]
