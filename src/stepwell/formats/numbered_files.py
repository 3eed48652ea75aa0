"""Files that are numbered: which ones their numbers skip."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence

from stepwell.errors import LeftOutWarning

__all__ = ["skipped_numbers", "warn_of_gaps"]

# train-000012.tar, train-00012-of-00100.tar.gz, train-00012-of-00100-0123456789abcdef.parquet
NUMBERED = re.compile(r"(.*?)(\d+)((?:-of-\d+)?)(?:-[0-9a-f]+)?((?:\.[A-Za-z]\w*)+)")
OF = re.compile(r"-of-(\d+)")


def skipped_numbers(names: Iterable[str]) -> list[str]:
    """Return the names of files that a numbered sequence lacks, fewer than those that it has.

    Example:
        >>> skipped_numbers(["a-000.tar", "a-001.tar", "a-003.tar", "b-00001-of-00003.tar", "b-00002-of-00003.tar"])
        ['a-002.tar', 'b-00000-of-00003.tar']
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if parts := NUMBERED.fullmatch(name):
            found.setdefault((parts[1], parts[3] + parts[4]), []).append(parts[2])
    lost: list[str] = []
    for (begin, end), digits in sorted(found.items()):
        numbers, width, total = set(map(int, digits)), min(map(len, digits)), OF.match(end)
        first, stop = (0, int(total[1])) if total else (min(numbers), max(numbers) + 1)
        # dates and hashes are numbers, too, of which most are not there
        if 0 < stop - first - len(numbers) <= len(numbers):
            lost += [f"{begin}{number:0{width}}{end}" for number in range(first, stop) if number not in numbers]
    return lost


def warn_of_gaps(folder: str, names: Sequence[str], way_out: str) -> None:
    """Warn of files that are not there by their numbers.

    Args:
        folder: where they lie.
        names: of those that are there.
        way_out: how to name files one by one.

    Warns:
        LeftOutWarning: names the first of them.
    """
    lost = skipped_numbers(names)
    if lost:
        more = f" and {len(lost) - 1} more are" if len(lost) > 1 else " is"
        warnings.warn(
            f"{folder}: {lost[0]}{more} not there, where {len(names)} files are numbered. If they should be, fetch "
            f"them; else {way_out}, or ignore the warning.",
            LeftOutWarning,
            stacklevel=4,
        )
