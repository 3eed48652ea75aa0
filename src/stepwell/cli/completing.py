"""``stepwell completion``, and what the shell is told of: features and names of episodes' facts of the store at PATH.

The shell runs ``stepwell`` itself (by argcomplete), which answers with what may come next and leaves.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.terminal import in_a_line
from stepwell.errors import MissingDependencyError

if TYPE_CHECKING:
    from stepwell.store import Store

__all__ = ["facts_of_path", "features_of_path", "run_completion"]

# episodes whose metadata is looked at: a shell waits for it
MAX_EPISODES = 20


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the code that a shell evaluates."""
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        raise MissingDependencyError.of("argcomplete", "cli") from None
    print(shellcode(["stepwell"], shell=arguments.shell))
    return 0


def features_of_path(parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
    """Return the features of the store at the path of a command line that is being typed; none where it cannot be."""
    # nothing that is printed or raised may reach the shell
    with suppress(Exception), _opened(parsed_args) as store:
        return list(store.schema or ())
    return []


def facts_of_path(parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
    """Return the names that a condition on episodes may have; likewise."""
    with suppress(Exception):
        from stepwell.windows.conditions import facts_of

        with _opened(parsed_args) as store:
            table = store.episodes
            looked_at = [facts_of(table, index) for index in range(min(len(table), MAX_EPISODES))]
            # what a shell cannot be given stays untyped
            return list(dict.fromkeys(name for facts in looked_at for name in facts if name == in_a_line(name)))
    return []


def _opened(parsed_args: argparse.Namespace) -> Store:
    """Return the store that a command line names; FileNotFoundError for all else, of which a key may read nothing."""
    from stepwell.formats.opening import is_store
    from stepwell.store import open

    place = getattr(parsed_args, "path", None) or getattr(parsed_args, "source", None)
    if not isinstance(place, Path) or not is_store(place):
        raise FileNotFoundError(place)
    return open(place, mode="r")
