import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepwell.beton.laying import LOTS_A_WORKER, Lot, _Placed, _Placing
from stepwell.beton.pages import PageCursor


class Sizes:
    """The measure of a lot: units of its number, plus one."""

    def __init__(self, lot):
        self.units = np.full(3, lot.number + 1)

    def place(self, cursor):
        return cursor.take_all(self.units).tolist()


class Pool:
    """Workers that answer when they are told to, each for what it was sent first."""

    def __init__(self, number, draw):
        self.counters = [[0] * 4 for _ in range(number)]
        self.sent = [[] for _ in range(number)]
        self.draw, self.placed, self.owners, self.most = draw, {}, {}, 0

    def send(self, worker, message):
        self.sent[worker].append(message)
        if isinstance(message, Lot):
            self.owners[message.number] = worker
        unwritten = {number for number, owner in self.owners.items() if owner == worker} - self.written
        self.most = max(self.most, len(unwritten))

    written = frozenset()

    def answers(self):
        ready = [worker for worker, messages in enumerate(self.sent) if messages]
        assert ready, "everybody waits for everybody"
        worker = self.draw(st.sampled_from(ready))
        message = self.sent[worker].pop(0)
        if isinstance(message, Lot):
            return [(worker, Sizes(message))]
        assert self.owners[message.lot.number] == worker
        self.placed[message.lot.number] = message.places
        self.written = self.written | {message.lot.number}
        return [(worker, None)]


class Bar:
    def update(self, counters):
        pass


@given(data=st.data(), workers=st.integers(1, 5), number=st.integers(1, 30), homes=st.integers(0, 7))
def test_places_depend_on_the_order_of_lots_alone_and_what_workers_hold_is_bounded(data, workers, number, homes):
    lots = [Lot(i, i, i + 1, data.draw(st.integers(0, homes - 1)) if homes else None) for i in range(number)]
    pool = Pool(workers, data.draw)
    _Placing(lots, PageCursor(0, 64), pool, Bar()).run()
    cursor = PageCursor(0, 64)
    assert pool.placed == {lot.number: Sizes(lot).place(cursor) for lot in lots}
    assert pool.most <= LOTS_A_WORKER
    if homes:
        assert all(pool.owners[lot.number] == lot.home % workers for lot in lots)


def test_what_is_placed_has_the_span_of_its_lot():
    placed = _Placed(Lot(2, 10, 20), None)
    assert (placed.start, placed.stop) == (10, 20)
