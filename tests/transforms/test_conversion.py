import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.errors import WindowError
from stepwell.transforms.base import Transform
from stepwell.transforms.conversion import Convert, OneHot, Reshape, Squeeze, ViewAs

VALUES = np.arange(2 * 3 * 1 * 4, dtype=np.int32).reshape(2, 3, 1, 4)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Convert("float32"), VALUES.astype(np.float32)),
        (Convert("int32"), VALUES),
        (ViewAs("uint8"), VALUES.view(np.uint8)),
        (ViewAs("float32"), VALUES.view(np.float32)),
        (ViewAs("int64"), VALUES.view(np.int64)),
        (Reshape(12), VALUES.reshape(2, 12)),
        (Reshape(2, -1), VALUES.reshape(2, 2, 6)),
        (Squeeze(), VALUES[:, :, 0]),
        (Squeeze(-2), VALUES[:, :, 0]),
        (Squeeze(1), VALUES[:, :, 0]),
        (OneHot(24, "uint8"), np.eye(24, dtype=np.uint8)[VALUES]),
    ],
    ids=repr,
)
def test_values_are_numpys_and_shapes_as_told(transform: Transform, expected: np.ndarray) -> None:
    found = transform(VALUES.copy(), None)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert transform.output(VALUES.shape[1:], VALUES.dtype) == (found.shape[1:], found.dtype)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Reshape(5), "cannot get shape"),
        (Reshape(5, -1), "cannot get shape"),
        (Reshape(0, -1), "cannot get shape"),
        (Squeeze(0), "no axis 0 of size 1"),
        (Squeeze(7), "no axis 7 of size 1"),
        (ViewAs("S9"), "cannot be read as"),
    ],
    ids=repr,
)
def test_windows_that_do_not_fit_are_refused(transform: Transform, message: str) -> None:
    with pytest.raises(WindowError, match=message):
        transform.output(VALUES.shape[1:], VALUES.dtype)


def test_two_unknown_sizes_are_refused() -> None:
    with pytest.raises(WindowError, match="more than one unknown size"):
        Reshape(-1, -1)


def test_classes_out_of_range_are_refused_and_so_are_floats() -> None:
    for classes in ([3], [-1]):
        with pytest.raises(WindowError, match=f"class {classes[0]} is not one of 3"):
            OneHot(3)(np.array(classes))
    with pytest.raises(WindowError, match="classes are integers"):
        OneHot(3).output((), np.dtype("float32"))


@given(hnp.arrays(np.int64, hnp.array_shapes(max_dims=3, max_side=4), elements=st.integers(0, 6)))
def test_one_hot_vectors_say_their_class(classes: np.ndarray) -> None:
    vectors = OneHot(7)(classes)
    assert np.array_equal(vectors.argmax(-1), classes)
    assert np.array_equal(vectors.sum(-1), np.ones(classes.shape))


def test_no_classes_are_refused() -> None:
    with pytest.raises(WindowError, match=r"OneHot of 0 classes\. Allowed: 1 or more"):
        OneHot(0)
