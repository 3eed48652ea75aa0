from itertools import product

import numpy as np

from stepwell.order.keys import derive_key, derive_seed


def test_seed_epoch_and_purpose_are_separate_words() -> None:
    numbers = [0, 1, 11, 2**32, 2**64, 2**128]
    keys = {derive_key(seed, epoch, name).tobytes() for seed, epoch, name in product(numbers, numbers, ["a", "b"])}
    assert len(keys) == 2 * len(numbers) ** 2


def test_keys_do_not_change_between_versions() -> None:
    # resumed runs and published seeds depend on these numbers
    assert derive_key(0, 1, "random").tolist() == [3295685493052497454, 11386078969961340709]
    assert derive_key(0, 1, "random").dtype == np.uint64


def test_derived_seeds_differ_by_seed_and_purpose() -> None:
    assert len({derive_seed(seed, name) for seed in (0, 1) for name in ("part 0", "part 1")}) == 4
