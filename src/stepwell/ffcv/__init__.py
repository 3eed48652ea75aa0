"""FFCV's names for writing: a conversion script needs only its imports changed, ``ffcv`` to ``stepwell.ffcv``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "DatasetWriter": "stepwell.ffcv.writer",
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
    "NDArrayField",
    "RGBImageField",
    "TorchTensorField",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
