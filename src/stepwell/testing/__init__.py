"""What a test of your own needs: strategies, tiny stores, codecs that fail or dawdle, and conformance classes.

Nothing here is loaded by ``import stepwell``, and hypothesis only when a strategy is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.testing.strategies import EpisodeData, episodes, features, schemas, steps, values

__all__ = ["EpisodeData", "episodes", "features", "schemas", "steps", "values"]

_MODULES = dict.fromkeys(("EpisodeData", "episodes", "features", "schemas", "steps", "values"), "strategies")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
