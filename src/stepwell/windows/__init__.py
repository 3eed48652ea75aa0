"""Windows: fields, views of episodes, the index of anchors, and the reader that makes batches of positions."""

from stepwell.windows.blocks import Blocks
from stepwell.windows.fields import Field, as_fields
from stepwell.windows.held import HeldRows, RowLoader
from stepwell.windows.index import AnchorIndex
from stepwell.windows.layouts import aligned_empty
from stepwell.windows.reader import PlaceReader, WindowReader
from stepwell.windows.resolved import VIRTUAL_DTYPES, ResolvedField, resolve
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
