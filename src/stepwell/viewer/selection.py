"""The episodes of the list as something to go on with: commands to copy, Python, or a store of links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepwellError, StoreBusyError
from stepwell.sizes import ranges_of
from stepwell.store import Store, concatenate
from stepwell.store.layout import built_directory

__all__ = ["commands_for", "save_selection"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# a word of a command line may be 128 KiB long
MAX_WORDS = 100_000
LEROBOT = "lerobot://"


def commands_for(store: Store, episodes: npt.NDArray[np.int64]) -> dict[str, str]:
    """Return what to do with episodes to the text that does it: lines of a shell, and Python.

    Lines that edit are given for stores and for LeRobot directories; those that would
    be too long for a shell are left out.

    Args:
        store: open for reading.
        episodes: int64 [n], ascending.
    """
    place = str(store.path) if store.address is None else store.address
    ranges = ranges_of(episodes)
    if not ranges:
        return {}
    found = {}
    directory = _editable(store)
    if directory is not None and len(",".join(ranges)) < MAX_WORDS:
        path, new = shlex.quote(directory), shlex.quote(f"{directory.removesuffix('.well')}-parts")
        found["copy them"] = f"stepwell split {path} {new} chosen={','.join(ranges)}"
        found["delete them"] = f"stepwell rm {path} {' '.join(ranges)}"
    if store.address is not None:
        first, last = int(episodes[0]), int(episodes[-1])
        chosen = f"--where 'episode_index in ({', '.join(map(str, episodes.tolist()))})'"
        chosen = f"--episodes {first}:{last + 1}" if len(ranges) == 1 else chosen
        if len(chosen) < MAX_WORDS:
            found["convert them"] = f"stepwell convert {shlex.quote(place)} chosen.well {chosen}"
    found["Python"] = f'stepwell.View(stepwell.open({place!r}, mode="r"), {_python(episodes)})'
    return found


def save_selection(store: Store, episodes: npt.NDArray[np.int64], name: str) -> Path:
    """Make a store of some episodes beside ``store``: of links, which take no space, and without the others.

    Args:
        store: a store, of which no episode is being recorded; no data set that is read in place.
        episodes: int64 [n], ascending.
        name: of the directory, no path.

    Raises:
        StepwellError: a name that is none, no episodes, or a data set that is read in place.
        StoreExistsError: something has that name.
        StoreBusyError: a writer is open.
    """
    if store.address is not None:
        raise StepwellError(f"{store.address} is read in place: its files belong to another system. Use a command.")
    if not NAME.fullmatch(name) or not len(episodes):
        raise StepwellError(
            f"{len(episodes)} episodes as {name!r}. Allowed: one or more, and a name of letters, digits, _, . and -."
        )
    target = store.path.parent / name
    # not seen before the others are hidden
    with built_directory(target) as partial:
        inner = Path(partial, "store")
        with concatenate(inner, [store]) as chosen:
            if not np.array_equal(chosen.episodes.origin, store.episodes.origin):
                raise StoreBusyError(f"{store.path} was changed meanwhile, and numbers may mean others. Try again.")
            kept = np.zeros(len(chosen), bool)
            kept[episodes] = True
            chosen.delete_episodes(~kept)
        for entry in inner.iterdir():
            entry.rename(Path(partial, entry.name))
        inner.rmdir()
    return target


def _editable(store: Store) -> str | None:
    """Return the directory that ``stepwell edit`` changes, if there is one."""
    if store.address is None:
        return str(store.path)
    source = store.address.removeprefix(LEROBOT)
    is_directory = store.address.startswith(LEROBOT) and "?" not in source and Path(source).is_dir()
    return source if is_directory else None


def _python(episodes: npt.NDArray[np.int64]) -> str:
    if len(episodes) == episodes[-1] - episodes[0] + 1:
        return f"range({episodes[0]}, {episodes[-1] + 1})"
    return str(episodes.tolist())
