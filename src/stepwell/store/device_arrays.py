"""Arrays of accelerators, as simulators on GPUs have them: to the host by one transfer a step.

::

    tensors --their bytes, one after the other--> uint8 [n] on the device --one copy--> memory that is kept --> views

No framework is imported: its arrays are known once the caller has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.errors import StepError

__all__ = ["HostCopies", "copied_there", "is_on_device", "mapped"]


def is_on_device(value: Any) -> bool:
    """Whether a value is a torch tensor that lies elsewhere than in memory, or an array of JAX."""
    return _is_tensor(value) or _is_jax_array(value)


def _is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor that does not lie in memory."""
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    return isinstance(value, tensor) and bool(value.device.type != "cpu")


def _is_jax_array(value: Any) -> bool:
    array: Any = getattr(sys.modules.get("jax"), "Array", ())
    return isinstance(value, array)


def copied_there(tree: Any) -> Any:
    """Return nested values with copies of tensors on their devices; None where none lies on a device."""
    found = False

    def copy(value: Any) -> Any:
        nonlocal found
        found = found or is_on_device(value)
        # arrays of JAX do not change
        return value.clone() if _is_tensor(value) else value

    copies = mapped(copy, tree)
    return copies if found else None


def mapped(convert: Callable[[Any], Any], tree: Any) -> Any:
    """Return nested mappings, lists and tuples with each value in them converted."""
    if isinstance(tree, Mapping):
        return {name: mapped(convert, value) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([mapped(convert, value) for value in tree])
    return convert(tree)


class HostCopies:
    """Takes arrays of accelerators to the host: one transfer a call, for tensors of one device."""

    def __init__(self) -> None:
        # page-locked memory, made larger when it must be
        self._pinned: Any = None

    def take(self, tree: Any) -> Any:
        """Return nested mappings, lists and tuples with numpy arrays for arrays of accelerators; itself without such.

        The arrays are valid until the next call.
        """
        if "torch" not in sys.modules and "jax" not in sys.modules:
            return tree
        found: dict[int, Any] = {}

        def note(value: Any) -> None:
            if is_on_device(value):
                found[id(value)] = value

        mapped(note, tree)
        if not found:
            return tree
        copies = self._copies(list(found.values()))
        hosts = dict(zip(found, copies, strict=True))
        return mapped(lambda value: hosts.get(id(value), value), tree)

    def _copies(self, arrays: list[Any]) -> list[Any]:
        """Return numpy arrays for arrays of accelerators, in their order."""
        hosts = dict.fromkeys(range(len(arrays)))
        places = [k for k, array in enumerate(arrays) if _is_jax_array(array)]
        if places:
            # copies of all begin before the first is waited for
            jax: Any = sys.modules["jax"]
            hosts |= zip(places, jax.device_get([arrays[k] for k in places]), strict=True)
        devices = {array.device for array in arrays if _is_tensor(array)}
        for device in devices:
            places = [k for k, array in enumerate(arrays) if _is_tensor(array) and array.device == device]
            # larger numbers first: each array begins at a multiple of its number's size
            places.sort(key=lambda k: -arrays[k].element_size())
            tensors = [arrays[k].detach() for k in places]
            hosts |= zip(places, self._transferred(tensors, device, is_alone=len(devices) == 1), strict=True)
        return list(hosts.values())

    def _transferred(self, tensors: Sequence[Any], device: Any, *, is_alone: bool) -> list[Any]:
        """Return torch tensors of one device as numpy arrays, by one transfer."""
        torch: Any = sys.modules["torch"]
        # bytes of an empty tensor cannot be viewed
        parts = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
        packed = torch.cat(parts) if len(parts) > 1 else parts[0] if parts else torch.empty(0, dtype=torch.uint8)
        if device.type == "cuda" and is_alone:
            if self._pinned is None or len(self._pinned) < len(packed):
                self._pinned = _pinned_memory(len(packed))
            host = self._pinned[: len(packed)]
            host.copy_(packed, non_blocking=True)
            _synchronize(device)
        else:
            host = packed.cpu()
        arrays, begin = [], 0
        for tensor in tensors:
            end = begin + tensor.numel() * tensor.element_size()
            try:
                arrays.append(host[begin:end].view(tensor.dtype).reshape(tensor.shape).numpy())
            except TypeError as error:
                raise StepError(
                    f"a tensor of {tensor.dtype}, which numpy does not have. Give tensor.float()."
                ) from error
            begin = end
        return arrays


def _pinned_memory(num_bytes: int) -> Any:
    torch: Any = sys.modules["torch"]
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _synchronize(device: Any) -> None:
    torch: Any = sys.modules["torch"]
    torch.cuda.current_stream(device).synchronize()
