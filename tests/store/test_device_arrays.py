"""Arrays of accelerators come to the host by one transfer a step: against stand-ins, where the machine has no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array
from stepwell.errors import StepError
from stepwell.store import device_arrays
from stepwell.store.device_arrays import HostCopies, copied_there, is_on_device
from tests.store.vector_models import SCHEMA

torch = pytest.importorskip("torch")


class DeviceTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor that says it lies on a device, and counts how often it is fetched."""

    kind = "xpu"
    transfers: ClassVar[list[int]] = []

    @property
    def device(self) -> Any:
        return torch.device(self.kind)

    def cpu(self) -> Any:
        self.transfers.append(self.numel())
        return self.as_subclass(torch.Tensor).clone()

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert xpu device type tensor to numpy")

    __array__ = numpy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            assert kwargs == {"non_blocking": True}
            cls.transfers.append(args[1].numel())
        return super().__torch_function__(func, types, args, kwargs or {})


def there(array: Any) -> Any:
    return torch.from_numpy(np.array(array)).as_subclass(DeviceTensor)


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(DeviceTensor, "transfers", found)
    return found


DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"]


@settings(max_examples=60, deadline=None)
@given(
    arrays=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), min_size=1, max_size=6
    ),
    seed=st.integers(0, 99),
)
def test_values_stay_as_they_are_in_one_transfer(arrays: list[tuple[str, list[int]]], seed: int) -> None:
    random, transfers = np.random.default_rng(seed), DeviceTensor.transfers
    transfers.clear()
    host = [np.asarray(random.integers(0, 2, shape)).astype(dtype) for dtype, shape in arrays]
    tree = {"a": there(host[0]), "rest": [there(array) for array in host[1:]], "here": (3, host[0], None)}
    # memory that does not follow the order of the values
    tree["turned"] = there(host[0]).permute(tuple(reversed(range(host[0].ndim))))
    found = HostCopies().take(tree)
    assert len(transfers) == (1 if any(array.size for array in host) else 0)
    assert found["here"] == (3, host[0], None) and found["here"][1] is host[0]
    for expected, array in zip([*host, host[0].T], [found["a"], *found["rest"], found["turned"]], strict=True):
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.flags.aligned
        assert np.array_equal(array, expected)


def test_what_lies_in_memory_is_left_alone() -> None:
    tree = {"a": np.zeros(3), "b": [torch.zeros(2), 1, "x"]}
    assert HostCopies().take(tree) is tree
    assert copied_there(tree) is None


def test_a_number_that_numpy_does_not_have_is_refused() -> None:
    with pytest.raises(StepError, match="bfloat16"):
        HostCopies().take([torch.zeros(3, dtype=torch.bfloat16).as_subclass(DeviceTensor)])


def test_tensors_of_cuda_go_through_memory_that_is_kept(transfers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made, waits = [], []
    monkeypatch.setattr(DeviceTensor, "kind", "cuda:1")
    monkeypatch.setattr(
        device_arrays, "_pinned_memory", lambda size: made.append(size) or torch.zeros(size, dtype=torch.uint8)
    )
    monkeypatch.setattr(device_arrays, "_synchronize", waits.append)
    copies = HostCopies()
    for length, num_made in ((4, 1), (3, 1), (5, 2), (2, 2)):
        numbers = np.arange(length, dtype=np.float32)
        found = copies.take({"a": there(numbers), "b": there(numbers > 1)})
        assert found["a"].tolist() == numbers.tolist() and found["b"].tolist() == (numbers > 1).tolist()
        assert len(made) == num_made
    assert transfers == [20, 15, 25, 10]
    assert waits == [torch.device("cuda:1")] * 4


def test_arrays_of_jax_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class JaxArray:
        def __init__(self, values: Any) -> None:
            self.values = np.asarray(values)

    calls = []

    def device_get(arrays: list[JaxArray]) -> list[Any]:
        calls.append(len(arrays))
        return [array.values for array in arrays]

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=JaxArray, device_get=device_get))
    tree = {"a": JaxArray([1, 2]), "b": [JaxArray(3.0), there([4])], "c": np.ones(1)}
    assert is_on_device(tree["a"])
    found = HostCopies().take(tree)
    assert calls == [2]
    assert found["a"].tolist() == [1, 2] and found["b"][0] == 3.0 and found["b"][1].tolist() == [4]


LAYOUTS: list[tuple[Any, int | None]] = [
    (SCHEMA, 1000),
    (SCHEMA, None),
    (None, 1000),
    (SCHEMA | {"action": Array((), "int64", codec="zstd")}, 1000),
]


@pytest.mark.parametrize(("schema", "capacity"), LAYOUTS)
def test_a_vector_step_is_one_transfer(tmp_path: Path, schema: Any, capacity: int | None, transfers: list[int]) -> None:
    stores = []
    for name, place in (("here", np.asarray), ("there", there)):
        store = stepwell.create(tmp_path / f"{name}.well", schema, capacity=capacity)
        transfers.clear()
        with store.vector_writer(3) as writer:
            for t in range(6):
                values = np.full((3, 2), t, np.float32)
                step = {"observation": place(values), "action": place(np.full(3, t))}
                done = np.array([t == 2, False, False])
                ids = writer.append(
                    step,
                    terminated=place(done),
                    mask=place(np.array([True, True, t > 1])),
                    final={"observation": place(values + 1)},
                )
                assert (ids[:2] >= 0).all()
                # and where only some of it lies there
                writer.append({"observation": values, "action": place(np.full(3, t))}, truncated=done)
                writer.append({"observation": values, "action": np.full(3, t)}, terminated=place(done))
            assert len(transfers) == (18 if name == "there" else 0)
            batch = {"observation": place(np.zeros((2, 3, 2), np.float32)), "action": place(np.ones((2, 3), np.int64))}
            writer.append_batch(batch, truncated=place(np.zeros((2, 3), np.bool_)))
            writer.end_episodes(place(np.array([False, True, False])), final={"observation": place(values)})
            assert len(transfers) == (20 if name == "there" else 0)
        stores.append(store)
    here, beyond = ([(e["action"].tolist(), e["observation"].tolist(), e.terminated) for e in s] for s in stores)
    assert sorted(here) == sorted(beyond)


def test_nested_values_of_a_device_are_taken(tmp_path: Path, transfers: list[int]) -> None:
    store = stepwell.create(tmp_path / "a.well", {"o.a": Array(2), "o.b": Array((), "int64")}, capacity=100)
    with store.vector_writer(2) as writer:
        for t in range(3):
            writer.append({"o": {"a": there(np.full((2, 2), t, np.float32)), "b": there(np.full(2, t))}})
            assert len(transfers) == t + 1
    assert [episode["o.b"].tolist() for episode in store] == [[0, 1, 2]] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_tensors_of_a_real_device_are_recorded(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=1000)
    with store.vector_writer(3) as writer:
        for t in range(200):
            values = torch.full((3, 2), float(t), device="cuda")
            done = torch.tensor([t % 7 == 6, False, False], device="cuda")
            step = {"observation": values, "action": torch.full((3,), t, device="cuda")}
            writer.append(step, terminated=done, final={"observation": values + 1})
    for episode in store:
        assert (episode["observation"][: episode.length, 0] == episode["action"]).all()
