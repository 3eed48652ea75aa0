"""Machines that did not answer a moment ago: the next file of theirs is not waited for as long as the first was.

::

    a.json   try  0.5 s  try  2 s  try  8 s  try: refused    the machine is silent for `SILENT_SECONDS`
    b.json   try: refused                                    at once; not even one try where trying takes long
    c.json   try: an answer                                  it is there again
"""

from __future__ import annotations

import errno
import socket
import time
from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["host_of", "is_silent", "note_answer", "note_failure", "why_not_asked"]

SILENT_SECONDS = 20.0
# a try that takes longer (a time-out, a name server without answer) is not made again while a machine is silent
QUICK_SECONDS = 0.5
UNREACHED = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class _Silence(NamedTuple):
    """That a machine did not answer.

    Args:
        end: of the time for which that is believed, seconds of the monotonic clock.
        told: what was said of it, where a try takes long; None: it is tried, once.
    """

    end: float
    told: str | None


_SILENT: dict[str, _Silence] = {}


def host_of(address: str) -> str:
    """Return the machine of an address, or what stands in its place, without a login.

    Example:
        >>> host_of("https://me:pass@host:8000/a.tar?token=1"), host_of("s3://bucket/a.tar")
        ('https://host:8000', 's3://bucket')
    """
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def is_silent(address: str) -> bool:
    """Return whether the machine of an address did not answer a moment ago."""
    return _silence_of(address) is not None


def why_not_asked(address: str) -> str | None:
    """Return what to say in place of a try that would take long and be in vain; None: it may be tried."""
    found = _silence_of(address)
    return None if found is None else found.told


def note_failure(address: str, error: BaseException, seconds: float) -> None:
    """Take note that nothing came, if it was for want of a connection.

    Args:
        address: that was asked for.
        error: what was raised; what caused it tells whether the machine was reached.
        seconds: that the last try took.
    """
    if _is_unreached(error):
        _SILENT[host_of(address)] = _Silence(
            time.monotonic() + SILENT_SECONDS, str(error) if seconds > QUICK_SECONDS else None
        )


def note_answer(address: str) -> None:
    """Take note that a machine answered."""
    _SILENT.pop(host_of(address), None)


def _silence_of(address: str) -> _Silence | None:
    found = _SILENT.get(host_of(address))
    return None if found is None or time.monotonic() >= found.end else found


def _is_unreached(error: BaseException | None) -> bool:
    """Return whether an error, or what it came of, is that of no connection."""
    seen = 0
    # chains of libraries may be circles
    while error is not None and seen < 16:
        if isinstance(error, TimeoutError | socket.gaierror) or getattr(error, "errno", None) in UNREACHED:
            return True
        inner = getattr(error, "reason", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
        seen += 1
    return False
