import copy
import pickle

import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.loader import Batch
from stepwell.loader.batch import nest


def test_batch_shows_shapes_and_never_values() -> None:
    batch = Batch({"a": np.full((2, 3), 77, "float32"), "b": {"c": np.array(["x", "y"], object)}, "d": [77]}, 4, 5)
    text = repr(batch)
    assert text == "<Batch epoch 4, index 5\n  a: float32[2, 3]\n  b.c: object[2]\n  d: list[1]>"


def test_batch_of_tensors_shows_their_dtypes() -> None:
    torch = pytest.importorskip("torch")
    assert "a: float32[2, 3]" in repr(Batch({"a": torch.zeros(2, 3)}))


def test_padded_batch_says_how_many_rows_are_valid() -> None:
    assert "index 0, 2 of 3 valid" in repr(Batch({}, valid=np.array([True, True, False])))


def test_a_mask_on_a_gpu_is_counted_there() -> None:
    class Mask:
        """A tensor that numpy cannot read."""

        def __len__(self) -> int:
            return 3

        def sum(self) -> float:
            return 2.0

        def __array__(self, *arguments: object) -> np.ndarray:
            raise TypeError("can't convert cuda tensor")

    assert "index 0, 2 of 3 valid" in repr(Batch({}, valid=Mask()))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_copies_of_a_batch_keep_its_attributes(copied) -> None:
    batch = Batch({"a": np.arange(3)}, 1, 2, np.array([True, True, False]), np.array([7, 8, 8]))
    other = copied(batch)
    assert type(other) is Batch
    assert other.anchors.tolist() == [7, 8, 8]
    assert (other.epoch, other.index, other["a"].tolist(), other.valid.tolist()) == (
        1,
        2,
        [0, 1, 2],
        [True, True, False],
    )


def test_other_values_of_the_same_rows_keep_the_attributes() -> None:
    batch = Batch({"a": np.arange(2)}, 1, 2, np.array([True, False]), np.array([7, 7]))
    other = batch.with_values({"loss": [0.5, 0.5]})
    assert dict(other) == {"loss": [0.5, 0.5]}
    assert (other.epoch, other.index, other.valid, other.anchors) == (1, 2, batch.valid, batch.anchors)


def test_dotted_keys_become_nested_dicts() -> None:
    assert nest({"a.b.c": 1, "a.b.d": 2, "a.e": 3, "f": 4}) == {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}


@pytest.mark.parametrize("keys", [("a", "a.b"), ("a.b", "a"), ("a.b", "a.b.c.d")])
def test_a_key_that_is_value_and_group_is_refused_by_name(keys: tuple[str, str]) -> None:
    with pytest.raises(WindowError, match="nested"):
        nest(dict.fromkeys(keys, 0))
