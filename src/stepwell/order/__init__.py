"""Orders: how an epoch visits the anchors, and how ranks share it."""

from stepwell.order.dealing import Dealing
from stepwell.order.keys import derive_key
from stepwell.order.mixture import Mixed, mixed
from stepwell.order.named import make_order
from stepwell.order.order import AnchorIndex, BoundOrder, Order, check_range
from stepwell.order.partition import Pad, Partition, Share, Stream, even_share
from stepwell.order.passes import Random, Sequential, random, sequential
from stepwell.order.pooled import BoundPooled, Pooled, pooled
from stepwell.order.stream import Span, stream_spans
from stepwell.order.weights import Weighted, weighted

__all__ = [
    "AnchorIndex",
    "BoundOrder",
    "BoundPooled",
    "Dealing",
    "Mixed",
    "Order",
    "Pad",
    "Partition",
    "Pooled",
    "Random",
    "Sequential",
    "Share",
    "Span",
    "Stream",
    "Weighted",
    "check_range",
    "derive_key",
    "even_share",
    "make_order",
    "mixed",
    "pooled",
    "random",
    "sequential",
    "stream_spans",
    "weighted",
]
