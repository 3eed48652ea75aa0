"""How items are chosen, by Reverb's names: the selectors of `stepwell.replay`."""

from stepwell.replay import selectors
from stepwell.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Uniform

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Uniform", "fresh"]


class Prioritized(selectors.Prioritized):
    """Draw in proportion to ``priority ** priority_exponent``; see `stepwell.replay.selectors.Prioritized`."""

    def __init__(self, priority_exponent: float) -> None:
        super().__init__(priority_exponent)


def fresh(selector: selectors.Selector) -> selectors.Selector:
    """Return a selector of the same kind without items, since each table needs one of its own."""
    if isinstance(selector, selectors.Prioritized):
        return selectors.Prioritized(selector.exponent)
    return type(selector)()
