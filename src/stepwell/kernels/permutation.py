"""A keyed permutation of ``[0, n)`` and keyed uniform numbers, both by position: constant memory at any n.

Neither keeps a state, so the k-th value costs the same as the first, an order can be resumed from one integer, and any
thread may ask for any range. A key is 128 bits (`stepwell.order.derive_key`).

Source: the permutation is an invertible multiply/xorshift mix, as the finaliser of MurmurHash3 (A. Appleby), on the
smallest power of two that holds n, with a key added and a keyed odd multiplier in every round, made to fit n by cycle
walking (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002). The uniform numbers come from the
finaliser of SplitMix64 (G. Steele, D. Lea and C. Flood, 2014; constants "Mix13" by D. Stafford).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.kernels.kernel import inlined, kernel

__all__ = ["MAX_PERMUTATION", "mix64", "permute", "shuffle_labels", "uniforms"]

MAX_PERMUTATION = 1 << 62
"""The largest n that can be permuted."""

# A mix of so few bits cannot reach all the permutations of a small set, a shuffled table can: 256 entries cost 1 us.
_TABLE_SIZE = 256
# Measured with 300 keys: 4 rounds leave no trace in the chi-square of pairs from 2**16 on, below it 6 leave none.
_ROUNDS = 4
_ROUNDS_SMALL = 6
_SMALL_BITS = 16

_U1 = np.uint64(1)
_U11 = np.uint64(11)
_U27 = np.uint64(27)
_U30 = np.uint64(30)
_U31 = np.uint64(31)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


@kernel
def mix64(value: Any) -> Any:
    """Return a uint64 each bit of which depends on every bit of a uint64; one to one."""
    value = (value ^ (value >> _U30)) * _MIX_A
    value = (value ^ (value >> _U27)) * _MIX_B
    return value ^ (value >> _U31)


@kernel
def shuffle_labels(labels: Any, state: Any) -> None:
    """Shuffle an array in place (Fisher-Yates), as the uint64 ``state`` says."""
    for last in range(labels.size - 1, 0, -1):
        state += _GOLDEN
        other = np.int64(mix64(state) % np.uint64(last + 1))
        labels[last], labels[other] = labels[other], labels[last]


@kernel
def _permute_by_table(positions: Any, n: int, key: Any, out: Any) -> None:
    # numba compiles a plain loop in a tenth of the time of an arange
    table = np.empty(n, np.int64)
    for i in range(n):
        table[i] = i
    shuffle_labels(table, mix64(key[0]) ^ key[1])
    for i in range(positions.size):
        out[i] = table[positions[i]]


@kernel
def _round_keys(key: Any, num_rounds: int) -> Any:
    keys = np.empty(2 * num_rounds, np.uint64)
    state = key[0]
    for i in range(num_rounds):
        state += _GOLDEN
        keys[2 * i] = mix64(state ^ key[1])
        state += _GOLDEN
        keys[2 * i + 1] = mix64(state ^ key[1]) | _U1
    return keys


@inlined
def _mix_word(x: Any, keys: Any, mask: Any, shift_a: Any, shift_b: Any) -> Any:
    for i in range(0, keys.size, 2):
        x = ((x + keys[i]) * keys[i + 1]) & mask
        x ^= (x >> shift_a) ^ (x >> shift_b)
    return x


@kernel
def _permute_by_mix(positions: Any, n: int, key: Any, out: Any) -> None:
    num_bits = 1
    while (1 << num_bits) < n:
        num_bits += 1
    mask = (_U1 << np.uint64(num_bits)) - _U1
    # two shifts, because a keyed multiplier may be a weak one and leave a single shift visible
    shift_a = np.uint64((num_bits + 1) // 2)
    shift_b = np.uint64(num_bits // 3)
    num_rounds = _ROUNDS if num_bits >= _SMALL_BITS else _ROUNDS_SMALL
    keys = _round_keys(key, num_rounds)
    limit = np.uint64(n)
    for i in range(positions.size):
        x = _mix_word(np.uint64(positions[i]), keys, mask, shift_a, shift_b)
        while x >= limit:
            x = _mix_word(x, keys, mask, shift_a, shift_b)
        out[i] = np.int64(x)


@kernel
def _uniforms_into(positions: Any, key: Any, out: Any) -> None:
    for i in range(positions.size):
        bits = mix64(mix64(np.uint64(positions[i]) + key[0]) + key[1])
        out[i] = np.float64(bits >> _U11) * (1.0 / 9007199254740992.0)


def permute(positions: npt.NDArray[np.int64], n: int, key: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return where a keyed permutation of ``[0, n)`` puts each position.

    Args:
        positions: int64 [m], each in ``[0, n)``, in any order.
        n: size of the set, 1 to 2**62.
        key: uint64 [2]; another key is another permutation.

    Returns:
        int64 [m]. Over all of ``[0, n)`` every value comes exactly once.

    Raises:
        OrderError: n or a position is out of range.

    Example:
        >>> import numpy as np
        >>> key = np.array([1, 2], np.uint64)
        >>> sorted(permute(np.arange(5), 5, key).tolist())
        [0, 1, 2, 3, 4]

    Notes:
        Releases the GIL. Up to n = 256 all n! permutations are equally likely; beyond that a mix of 4 to 6 rounds:
        about 4 ns an index where n is little below a power of two, 10 to 20 ns just above one.
    """
    if not 1 <= n <= MAX_PERMUTATION:
        raise OrderError(f"a permutation of {n} positions. Allowed are 1 to 2**62.")
    positions = np.ascontiguousarray(positions, np.int64)
    if positions.size and not (positions.min() >= 0 and positions.max() < n):
        raise OrderError(
            f"positions {positions.min()} to {positions.max()} of a permutation of {n}. Allowed are 0 to {n - 1}."
        )
    out = np.empty(positions.shape, np.int64)
    if n <= _TABLE_SIZE:
        _permute_by_table(positions, n, key, out)
    else:
        _permute_by_mix(positions, n, key, out)
    return out


def uniforms(positions: npt.NDArray[np.int64], key: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return one uniform number a position: the same one for the same position and key.

    Args:
        positions: int64 [m].
        key: uint64 [2].

    Returns:
        float64 [m] in [0, 1), multiples of 2**-53.

    Example:
        >>> import numpy as np
        >>> key = np.array([1, 2], np.uint64)
        >>> bool((uniforms(np.arange(9), key)[3:5] == uniforms(np.arange(3, 5), key)).all())
        True
    """
    positions = np.ascontiguousarray(positions, np.int64)
    out = np.empty(positions.shape, np.float64)
    _uniforms_into(positions, key, out)
    return cast("npt.NDArray[np.float64]", out)
