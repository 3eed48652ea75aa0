"""What a test of your own needs: strategies, seeded arrays, codecs that fail or dawdle, and conformance classes.

Nothing here is loaded by ``import stepwell``; hypothesis and pytest only when what needs them is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.testing.arrays import random_array, smooth_image
    from stepwell.testing.codecs import DelayedCodec, FailingCodec, RunningCodec, SlowRunningCodec
    from stepwell.testing.conformance import CodecConformance
    from stepwell.testing.damage import DamageReport, check_damage, damaged_copies
    from stepwell.testing.hub import HubServer
    from stepwell.testing.kinds_of_images import KindOfImage, image_files, png_file
    from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot, tiny_lerobot_picture, tiny_lerobot_rows
    from stepwell.testing.run_conformance import SequentialCodecConformance
    from stepwell.testing.stores import TINY_FEATURES, counted_value, tiny_store
    from stepwell.testing.strategies import EpisodeData, episodes, features, schemas, steps, values
    from stepwell.testing.web import WebServer

__all__ = [
    "TINY_FEATURES",
    "TINY_TASKS",
    "CodecConformance",
    "DamageReport",
    "DelayedCodec",
    "EpisodeData",
    "FailingCodec",
    "HubServer",
    "KindOfImage",
    "RunningCodec",
    "SequentialCodecConformance",
    "SlowRunningCodec",
    "WebServer",
    "check_damage",
    "counted_value",
    "damaged_copies",
    "episodes",
    "features",
    "image_files",
    "png_file",
    "random_array",
    "schemas",
    "smooth_image",
    "steps",
    "tiny_lerobot",
    "tiny_lerobot_picture",
    "tiny_lerobot_rows",
    "tiny_store",
    "values",
]

_MODULES = {
    "TINY_FEATURES": "stores",
    "TINY_TASKS": "lerobot",
    "CodecConformance": "conformance",
    "DamageReport": "damage",
    "DelayedCodec": "codecs",
    "EpisodeData": "strategies",
    "FailingCodec": "codecs",
    "HubServer": "hub",
    "KindOfImage": "kinds_of_images",
    "RunningCodec": "codecs",
    "SequentialCodecConformance": "run_conformance",
    "SlowRunningCodec": "codecs",
    "WebServer": "web",
    "check_damage": "damage",
    "counted_value": "stores",
    "damaged_copies": "damage",
    "episodes": "strategies",
    "features": "strategies",
    "image_files": "kinds_of_images",
    "png_file": "kinds_of_images",
    "random_array": "arrays",
    "schemas": "strategies",
    "smooth_image": "arrays",
    "steps": "strategies",
    "tiny_lerobot": "lerobot",
    "tiny_lerobot_picture": "lerobot",
    "tiny_lerobot_rows": "lerobot",
    "tiny_store": "stores",
    "values": "strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
