"""FFCV by its names: a script needs only its imports changed, ``ffcv`` to ``stepwell.ffcv``."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.ffcv.fields import (
        BytesField,
        Field,
        FloatField,
        IntField,
        JSONField,
        NDArrayField,
        RGBImageField,
        TorchTensorField,
    )
    from stepwell.ffcv.loader import Loader, OrderOption
    from stepwell.ffcv.reader import Reader
    from stepwell.ffcv.writer import DatasetWriter

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "DatasetWriter": "stepwell.ffcv.writer",
    "Loader": "stepwell.ffcv.loader",
    "OrderOption": "stepwell.ffcv.loader",
    "Reader": "stepwell.ffcv.reader",
    **dict.fromkeys(
        (
            "BytesField",
            "Field",
            "FloatField",
            "IntField",
            "JSONField",
            "NDArrayField",
            "RGBImageField",
            "TorchTensorField",
        ),
        "stepwell.ffcv.fields",
    ),
}

__all__: list[str] = [
    "BytesField",
    "DatasetWriter",
    "Field",
    "FloatField",
    "IntField",
    "JSONField",
    "Loader",
    "NDArrayField",
    "OrderOption",
    "RGBImageField",
    "Reader",
    "TorchTensorField",
]

# FFCV's modules, which scripts import by these names, and ours that have what is in them
_MODULES: dict[str, tuple[str, ...]] = {
    "fields": ("base", "basics", "bytes", "decoders", "json", "ndarray", "rgb_image"),
    "loader": ("epoch_iterator", "loader"),
    "pipeline": ("allocation_query", "compiler", "operation", "pipeline_spec", "state"),
    "transforms": (
        "color_jitter",
        "common",
        "cutout",
        "flip",
        "mixup",
        "module",
        "normalize",
        "ops",
        "poisoning",
        "random_resized_crop",
        "replace_label",
        "translate",
    ),
}
_ELSEWHERE: dict[str, str] = {
    "libffcv": "decoders",
    "memory_managers": "reader",
    "memory_managers.base": "reader",
    "memory_managers.os_cache": "reader",
    "memory_managers.process_cache": "reader",
    "traversal_order": "loader",
    "traversal_order.base": "loader",
    "traversal_order.quasi_random": "loader",
    "traversal_order.random": "loader",
    "traversal_order.sequential": "loader",
    "types": "fields",
}


# modules that FFCV has as its attributes
_LOADED: frozenset[str] = frozenset(
    {"fields", "loader", "memory_managers", "pipeline", "reader", "transforms", "traversal_order", "writer"}
)


class _Alias(ModuleType):
    """A module of FFCV's whose names are in one of ours; what its modules import is in ``pipeline``."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(f"{__name__}.{name}", f"The names of `{__name__}.{home}`.")
        self.__path__: list[str] = []
        self._home = f"{__name__}.{home}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        home, protocol = import_module(self._home), import_module(f"{__name__}.pipeline")
        return getattr(protocol if name not in dir(home) and name in protocol.__all__ else home, name)


for _home, _names in _MODULES.items():
    for _name in _names:
        _ELSEWHERE[f"{_home}.{_name}"] = _home
for _name, _home in _ELSEWHERE.items():
    sys.modules[f"{__name__}.{_name}"] = _Alias(_name, _home)


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        if name in _LOADED or name in _ELSEWHERE:
            return import_module(f"{__name__}.{name}")
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
