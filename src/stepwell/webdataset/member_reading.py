"""The bytes of members: read a few megabytes of a shard at a time, since samples are asked for in order."""

from __future__ import annotations

from typing import Any

from stepwell.errors import FormatError, StepwellError
from stepwell.webdataset.member_columns import MemberColumn
from stepwell.webdataset.samples import Shard
from stepwell.webdataset.tar_index import open_archive

__all__ = ["ShardWindow", "member_values"]

WINDOW_BYTES = 4 << 20


class ShardWindow:
    """Some bytes of a shard, from a sample on.

    Args:
        shard: whose members are read.

    Notes:
        For one thread. Holds `WINDOW_BYTES`, or one sample that is larger.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._data, self._start = b"", 0
        self._file = open_archive(shard.path)
        first, last = shard.spans()
        self._firsts, self._lasts = first.tolist(), last.tolist()
        self._places = {
            ending: (members.offsets.tolist(), members.sizes.tolist()) for ending, members in shard.members.items()
        }

    def sample(self, sample: int) -> dict[str, bytes]:
        """Return the members of a sample, those that it has, by their ending.

        Raises:
            FormatError: the shard is gone, or shorter than it was.
        """
        self._need(self._firsts[sample], self._lasts[sample])
        found = {}
        for ending, (offsets, sizes) in self._places.items():
            if offsets[sample] >= 0:
                place = offsets[sample] - self._start
                found[ending] = self._data[place : place + sizes[sample]]
        return found

    def member(self, sample: int, ending: str) -> bytes:
        """Return one member, which the sample has.

        Raises:
            FormatError: see `sample`.
        """
        offset, size = (part[sample] for part in self._places[ending])
        return self._read(offset, size)

    def _need(self, first: int, last: int) -> None:
        if not self._start <= first <= last <= self._start + len(self._data):
            self._data, self._start = self._read(first, max(last - first, WINDOW_BYTES), least=last - first), first

    def _read(self, offset: int, size: int, least: int | None = None) -> bytes:
        try:
            data = self._file.read(offset, size)
        except OSError as error:
            raise FormatError(f"{self.shard.path} cannot be read: {error.strerror}.") from error
        if len(data) < (size if least is None else least):
            raise FormatError(f"{self.shard.path} was cut off since it was opened. Open it again.")
        return data


def member_values(shard: Shard, sample: int, ending: str, column: MemberColumn, data: bytes) -> tuple[Any, ...]:
    """Return the values of a member.

    Args:
        shard: it is of.
        sample: it is of.
        ending: of its name.
        column: what such members become.
        data: its bytes.

    Raises:
        FormatError: bytes that are not what the ending says: names shard, sample and byte.
    """
    try:
        return column.values(data)
    except StepwellError:
        raise
    except Exception as error:  # a decoder may be anybody's
        told = f"no {error}" if isinstance(error, KeyError) else error
        raise FormatError(f"{shard.where(sample, ending)}: {told}.") from error
