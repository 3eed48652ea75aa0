from typing import Any

import numpy as np
import pytest

from stepwell.errors import LoaderError, MissingDependencyError
from stepwell.loader import memory as loader_memory
from stepwell.loader.memory import PinnedBlock, to_torch

torch = pytest.importorskip("torch")


def test_tensors_share_the_arrays_memory() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = to_torch({"a": array}, torch)["a"]
    array[1, 2] = 99
    assert tensor[1, 2] == 99


@pytest.mark.parametrize("value", [np.array(["a", None], object), np.zeros(2, [("x", "f4")]), np.zeros(2, ">f4")])
def test_what_torch_has_no_dtype_for_stays_numpy(value: np.ndarray) -> None:
    assert to_torch({"a": value}, torch)["a"] is value


def test_what_torch_cannot_wrap_is_copied() -> None:
    base = np.arange(6)
    fixed = base.copy()
    fixed.flags.writeable = False
    packed = np.array([(0, 1.5), (0, 2.5)], [("tag", "u1"), ("x", "f4")])["x"]
    arrays = {"flipped": base[::-1], "fixed": fixed, "wide": np.broadcast_to(base, (2, 6)), "packed": packed}
    found = to_torch(arrays, torch)
    assert found["packed"].tolist() == [1.5, 2.5]
    assert found["flipped"].tolist() == base[::-1].tolist()
    assert found["fixed"].tolist() == base.tolist()
    assert found["wide"].tolist() == [base.tolist()] * 2


def test_missing_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[torch\]"):
        loader_memory.import_torch()


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_pinning_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(LoaderError, match="Leave pin_memory out"):
        PinnedBlock(8, torch)


class UnpinnedTorch:
    """Torch on a machine without CUDA, where nothing can be pinned."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, pin_memory: bool, **kwargs: Any) -> Any:
        assert pin_memory
        return torch.empty(*args, **kwargs)


def test_pinned_tensors_are_cut_from_the_one_storage_that_torch_made() -> None:
    block = PinnedBlock(256, UnpinnedTorch())
    images = np.ndarray((2, 3), "u1", block.memory, 64)
    states = np.ndarray((2, 4), "f4", block.memory, 128)
    masks = np.ndarray((2,), "?", block.memory, 192)
    images[:], states[:], masks[:] = 5, 1.5, [True, False]
    found = to_torch({"images": images, "states": states, "masks": masks}, UnpinnedTorch(), block)
    assert found["images"].tolist() == images.tolist()
    assert found["states"].tolist() == states.tolist()
    assert found["masks"].tolist() == [True, False]
    storages = {tensor.untyped_storage().data_ptr() for tensor in found.values()}
    assert storages == {block.memory.ctypes.data}
    states[0, 0] = 7
    assert found["states"][0, 0] == 7


def test_pinned_tensors_of_exchanged_axes_are_cut_from_it_too() -> None:
    block = PinnedBlock(512, UnpinnedTorch())
    images = np.ndarray((2, 4, 5, 3), "u1", block.memory, 64)
    images[:] = np.arange(images.size).reshape(images.shape)
    states = np.ndarray((3, 4), "f4", block.memory, 256)
    states[:] = np.arange(12).reshape(3, 4)
    arrays = {"planes": np.moveaxis(images, -1, 1), "some": states[1:, ::2], "number": states[2, 3:].reshape(())}
    found = to_torch(dict(arrays), UnpinnedTorch(), block)
    for key, array in arrays.items():
        assert found[key].shape == array.shape
        assert found[key].tolist() == array.tolist()
        assert found[key].untyped_storage().data_ptr() == block.memory.ctypes.data
    assert found["planes"].is_contiguous(memory_format=torch.channels_last)
