"""Orders: how an epoch visits the anchors, and how ranks share it."""

from stepwell.order.mixture import Mixed, Weighted, mixed, weighted
from stepwell.order.order import (
    Anchors,
    BoundOrder,
    Order,
    Random,
    Sequential,
    check_range,
    derive_key,
    make_order,
    random,
    sequential,
)
from stepwell.order.pooled import BoundPooled, Pooled, pooled
from stepwell.order.ranks import Pad, Partition, RankSpan, Share, even_share, stream_spans

__all__ = [
    "Anchors",
    "BoundOrder",
    "BoundPooled",
    "Mixed",
    "Order",
    "Pad",
    "Partition",
    "Pooled",
    "Random",
    "RankSpan",
    "Sequential",
    "Share",
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
