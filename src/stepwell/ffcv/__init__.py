"""FFCV's names for writing: a conversion script needs only its imports changed, ``ffcv`` to ``stepwell.ffcv``."""

from __future__ import annotations

from typing import Any

from stepwell.lazy import load_name

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
    return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
