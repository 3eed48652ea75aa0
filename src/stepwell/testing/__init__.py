"""What a test of your own needs: strategies, seeded arrays, codecs that fail or dawdle, and conformance classes.

Nothing here is loaded by ``import stepwell``; hypothesis and pytest only when what needs them is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.testing.codecs import DelayedCodec, FailingCodec, RunningCodec, SlowRunningCodec
    from stepwell.testing.conformance import CodecConformance, SequentialCodecConformance
    from stepwell.testing.damage import DamageReport, check_damage, damaged_copies
    from stepwell.testing.hub import HubServer
    from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot, tiny_lerobot_picture, tiny_lerobot_rows
    from stepwell.testing.stores import TINY_FEATURES, counted_value, random_array, smooth_image, tiny_store
    from stepwell.testing.strangers import EvilCopy, StrangersReport, check_strangers, evil_copies
    from stepwell.testing.strategies import EpisodeData, episodes, features, schemas, steps, values

__all__ = [
    "TINY_FEATURES",
    "TINY_TASKS",
    "CodecConformance",
    "DamageReport",
    "DelayedCodec",
    "EpisodeData",
    "EvilCopy",
    "FailingCodec",
    "HubServer",
    "RunningCodec",
    "SequentialCodecConformance",
    "SlowRunningCodec",
    "StrangersReport",
    "check_damage",
    "check_strangers",
    "counted_value",
    "damaged_copies",
    "episodes",
    "evil_copies",
    "features",
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

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "TINY_FEATURES": "stepwell.testing.stores",
    "TINY_TASKS": "stepwell.testing.lerobot",
    "CodecConformance": "stepwell.testing.conformance",
    "DamageReport": "stepwell.testing.damage",
    "DelayedCodec": "stepwell.testing.codecs",
    "EpisodeData": "stepwell.testing.strategies",
    "EvilCopy": "stepwell.testing.strangers",
    "FailingCodec": "stepwell.testing.codecs",
    "HubServer": "stepwell.testing.hub",
    "RunningCodec": "stepwell.testing.codecs",
    "SequentialCodecConformance": "stepwell.testing.conformance",
    "SlowRunningCodec": "stepwell.testing.codecs",
    "StrangersReport": "stepwell.testing.strangers",
    "check_damage": "stepwell.testing.damage",
    "check_strangers": "stepwell.testing.strangers",
    "counted_value": "stepwell.testing.stores",
    "damaged_copies": "stepwell.testing.damage",
    "episodes": "stepwell.testing.strategies",
    "evil_copies": "stepwell.testing.strangers",
    "features": "stepwell.testing.strategies",
    "random_array": "stepwell.testing.stores",
    "schemas": "stepwell.testing.strategies",
    "smooth_image": "stepwell.testing.stores",
    "steps": "stepwell.testing.strategies",
    "tiny_lerobot": "stepwell.testing.lerobot",
    "tiny_lerobot_picture": "stepwell.testing.lerobot",
    "tiny_lerobot_rows": "stepwell.testing.lerobot",
    "tiny_store": "stepwell.testing.stores",
    "values": "stepwell.testing.strategies",
}


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
