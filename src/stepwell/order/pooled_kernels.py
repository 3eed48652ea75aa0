"""The rounds of a pooled order: from a position to the anchor that is drawn there; see `stepwell.order.pooled`.

Everything is worked out from one line a block, so that any range of positions costs what it is long, and the lines of
the blocks of the rounds that it touches.

Notes:
    Assignments of slices are written as loops: numba takes seconds to compile the error texts of its assignments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.permutation import mix64, shuffle_labels

__all__ = ["BEGIN", "BITS", "COUNT", "FIRST", "KEY", "LINE_COLUMNS", "PHASE", "SIZE", "deal", "key_lines", "sum_rounds"]

# columns of a rank's table, int64 [L, LINE_COLUMNS], one line a block in the order of the epoch
FIRST, SIZE, BEGIN, COUNT, PHASE, KEY, BITS = range(7)
LINE_COLUMNS = 7

# 1 / (e - 1), see stepwell.order.pooled
_END_WEIGHT = 0.5819767068693265
# a set that is shuffled as a table reaches every order; above this size a mix by position is as good, and faster
_TABLE_SIZE = 256
_MIX_ROUNDS = 6
# a mix of fewer bits than these has shifts of 0, which do not lead back
_LEAST_BITS = 3

_U1 = np.uint64(1)
_U31 = np.uint64(31)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _weight_before(r: Any, num_resident: Any, num_rounds: Any) -> Any:
    # the weights of the rounds before r, summed: the first and the last have that of S / (e - 1) others
    if r == 0:
        return np.int64(0)
    end_weight: Any = max(1, np.int64(num_resident * _END_WEIGHT + 0.5))
    if r < num_rounds or r == 1:
        return end_weight + r - 1
    return 2 * end_weight + r - 2


@kernel
def _stay(j: Any, num_resident: Any, num_rounds: Any) -> Any:
    # the weights before the round at which block j enters, and of all rounds that it is there
    before = _weight_before(max(0, j - num_resident + 1), num_resident, num_rounds)
    return before, _weight_before(min(j, num_rounds - 1) + 1, num_resident, num_rounds) - before


@inlined
def _edge(count: Any, phase: Any, weight: Any, stay: Any) -> Any:
    # how many of a block's anchors belong to a weight of its stay; unsigned, since signed division costs twice as much
    return np.int64((np.uint64(weight) * np.uint64(count) + np.uint64(phase)) // np.uint64(stay))


@kernel
def _num_bits(n: Any) -> Any:
    bits = _LEAST_BITS
    while (1 << bits) < n:
        bits += 1
    return bits


@kernel
def key_lines(lines: Any, blocks: Any, num_resident: Any, key: Any) -> None:
    """Work out what each block is permuted and dealt by.

    Args:
        lines: int64 [L, LINE_COLUMNS]; written.
        blocks: int64 [L], the block of each line.
        num_resident: S, blocks of a round, 1 to L.
        key: uint64 [2].
    """
    num_rounds = lines.shape[0] - num_resident + 1
    for j in range(lines.shape[0]):
        word = mix64(mix64(np.uint64(blocks[j]) + key[0]) + key[1])
        _, stay = _stay(j, num_resident, num_rounds)
        lines[j, KEY] = np.int64(word)
        lines[j, BITS] = _num_bits(lines[j, SIZE])
        lines[j, PHASE] = np.int64(mix64(word) % np.uint64(stay))


@kernel
def sum_rounds(lines: Any, num_resident: Any, round_starts: Any) -> None:
    """Write how many positions there are before each round.

    Args:
        lines: int64 [L, LINE_COLUMNS].
        num_resident: S, blocks of a round, 1 to L.
        round_starts: int64 [R + 1], R = L - S + 1; written.
    """
    num_rounds = round_starts.size - 1
    for r in range(round_starts.size):
        round_starts[r] = 0
    for j in range(lines.shape[0]):
        begin, stay = _stay(j, num_resident, num_rounds)
        before = np.int64(0)
        for r in range(max(0, j - num_resident + 1), min(j, num_rounds - 1) + 1):
            weight = _weight_before(r + 1, num_resident, num_rounds) - begin
            after = _edge(lines[j, COUNT], lines[j, PHASE], weight, stay)
            round_starts[r + 1] += after - before
            before = after
    for r in range(num_rounds):
        round_starts[r + 1] += round_starts[r]


@kernel
def _scatter(value: Any, n: Any, bits: Any, key: Any) -> Any:
    # where a keyed permutation of [0, n) puts a value: as in permutation.py, with one word a round for both of its keys
    if n == 1:
        return np.int64(0)
    mask = (_U1 << np.uint64(bits)) - _U1
    shift_a = np.uint64((bits + 1) // 2)
    shift_b = np.uint64(bits // 3)
    limit = np.uint64(n)
    x = np.uint64(value)
    while True:
        state = key
        for _ in range(_MIX_ROUNDS):
            state += _GOLDEN
            word = mix64(state)
            x = ((x + word) * ((word >> _U31) | _U1)) & mask
            x ^= (x >> shift_a) ^ (x >> shift_b)
        if x < limit:
            return np.int64(x)


@kernel
def _round_of(round_starts: Any, position: Any) -> Any:
    low, high = 0, round_starts.size - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if round_starts[middle] <= position:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def deal(lines: Any, round_starts: Any, num_resident: Any, key: Any, first: Any, out: Any) -> None:  # noqa: PLR0917
    """Write the anchors at some positions of a rank's epoch.

    Args:
        lines: int64 [L, LINE_COLUMNS].
        round_starts: int64 [R + 1], of `sum_rounds`.
        num_resident: S.
        key: uint64 [2], of the shuffles inside the rounds.
        first: the first position.
        out: int64 [n], written; ``first + n`` is at most ``round_starts[R]``.
    """
    edges = np.empty(num_resident + 1, np.int64)
    table = np.empty(_TABLE_SIZE, np.int64)
    done = 0
    r = _round_of(round_starts, first)
    while done < out.size:
        begin = round_starts[r]
        size = round_starts[r + 1] - begin
        taken = min(begin + size - first, out.size) - done
        if taken > 0:
            round_key = mix64(key[0] + np.uint64(r)) ^ key[1]
            _fill_edges(lines, r, round_starts.size - 1, edges)
            if size <= _TABLE_SIZE:
                shuffled = table[:size]
                for i in range(size):
                    shuffled[i] = i
                shuffle_labels(shuffled, round_key)
                for i in range(done, done + taken):
                    draw = shuffled[first + i - begin]
                    out[i] = _anchor(lines, r, round_starts.size - 1, edges, draw)
            else:
                bits = _num_bits(size)
                for i in range(done, done + taken):
                    draw = _scatter(first + i - begin, size, bits, round_key)
                    out[i] = _anchor(lines, r, round_starts.size - 1, edges, draw)
            done += taken
        r += 1


@kernel
def _fill_edges(lines: Any, r: Any, num_rounds: Any, edges: Any) -> None:
    # edges[s] = draws of the round that go to its first s blocks
    num_resident = edges.size - 1
    edges[0] = 0
    here = _weight_before(r, num_resident, num_rounds)
    after = _weight_before(r + 1, num_resident, num_rounds)
    for s in range(num_resident):
        begin, stay = _stay(r + s, num_resident, num_rounds)
        count, phase = lines[r + s, COUNT], lines[r + s, PHASE]
        part = _edge(count, phase, after - begin, stay) - _edge(count, phase, here - begin, stay)
        edges[s + 1] = edges[s] + part


@kernel
def _anchor(lines: Any, r: Any, num_rounds: Any, edges: Any, draw: Any) -> Any:
    # the block whose part of the round has the draw, and of it the anchor that its own permutation has there
    low, high = 0, edges.size - 2
    while low < high:
        middle = (low + high + 1) >> 1
        if edges[middle] <= draw:
            low = middle
        else:
            high = middle - 1
    line = lines[r + low]
    begin, stay = _stay(r + low, edges.size - 1, num_rounds)
    here = _weight_before(r, edges.size - 1, num_rounds) - begin
    rank = line[BEGIN] + _edge(line[COUNT], line[PHASE], here, stay) + draw - edges[low]
    return line[FIRST] + _scatter(rank, line[SIZE], line[BITS], np.uint64(line[KEY]))
