r"""What files were when references into them were made: noted with the references, compared when a file is opened.

::

    option files    "train-00.tar\ntrain-01.tar\n..."
    option states   "1240 1763728999123456789\n1380 91ab03cd77e2\n..."      bytes, and the time of the last change in
                                                                            nanoseconds; or the version of a file on
                                                                            another machine; nothing: not known
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from stepwell.errors import StepwellError
from stepwell.files.local_files import FileState, state_of

__all__ = ["difference", "lines_of", "noted_bytes", "noted_states", "problem_of"]

SIZE, TIME = 2, 3  # of a FileState
AGAIN = "Open the data set again; a store that was made of it while it was in place has to be made anew."
TIME_TEXT = re.compile(r"-?[0-9]{1,19}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def noted_states(states: Iterable[tuple[int, int | str] | None]) -> str:
    r"""Return states of files as a feature's option has them.

    Args:
        states: bytes, -1 where they are not known, and version of each file: the time of its last change in
            nanoseconds, or what another machine tells; None where nothing is known.

    Example:
        >>> noted_states([(1240, 1763728999123456789), None, (-1, "91ab03cd77e2")])
        '1240 1763728999123456789\n\n-1 91ab03cd77e2'
    """
    return "\n".join("" if state is None else f"{state[0]} {state[1]}" for state in states)


@functools.lru_cache(maxsize=16)
def lines_of(states: str) -> tuple[str, ...]:
    """Return what is noted of each file; nothing at all of no text."""
    return tuple(states.split("\n")) if states else ()


def noted_bytes(line: str) -> int:
    """Return a file's size as it is noted; 0 where it is not known.

    Example:
        >>> noted_bytes("1240 1763728999123456789"), noted_bytes(""), noted_bytes("-1 91ab03cd77e2")
        (1240, 0, 0)
    """
    size = line.partition(" ")[0]
    return int(size) if size.isdecimal() else 0


def difference(path: str, line: str, state: FileState | None = None) -> str | None:
    """Return what is to be said of a file that is another one by now; None of one that is as it was.

    Args:
        path: of the file, or its address.
        line: what is noted of it; of nothing there is no difference.
        state: of one on this machine, if it was just asked for.

    Raises:
        OSError: a file of this machine that cannot be looked at.
        StepwellError: one of another machine.
    """
    if not line:
        return None
    size, _, version = line.partition(" ")
    if "://" in path:
        from stepwell.references.remote_files import known_state

        now = known_state(path)
        is_same, found = now.version == version, _told(str(now.num_bytes), f"version {now.version}")
        was = _told(size, f"version {version}")
    else:
        state = state_of(path) if state is None else state
        is_same = line == f"{state[SIZE]} {state[TIME]}"
        was, found = _told(size, _when(version)), _told(str(state[SIZE]), _when(str(state[TIME])))
    if is_same:
        return None
    return f"the file is another one than when references into it were made: it had {was}; it has {found}. {AGAIN}"


def problem_of(path: str, line: str) -> str | None:
    """Return what is to be said of a file that is not as it was, one that cannot be looked at among them.

    Args:
        path: of the file, or its address.
        line: what is noted of it.
    """
    try:
        return difference(path, line, None if "://" in path else state_of(path))
    except FileNotFoundError:
        return "there is no such file. Put it back, or leave out the episodes that lie in it."
    except (OSError, StepwellError) as error:
        return f"it cannot be looked at: {error}"


def _told(size: str, version: str) -> str:
    return f"{int(size):,} bytes, {version}" if size.isdecimal() else version


def _when(nanoseconds: str) -> str:
    """Return a time as people write it, to the microsecond; what is none as it is."""
    if not TIME_TEXT.fullmatch(nanoseconds):
        return f"version {nanoseconds}"
    told = (EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)).isoformat(" ")
    return f"last changed {told.removesuffix('+00:00')} UTC"
