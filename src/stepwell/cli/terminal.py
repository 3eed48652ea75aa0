"""What is printed fits the terminal: lines are folded between words, tables lose columns; in a pipe nothing is lost.

Texts of strangers (names of metadata, tasks, files, of servers) may hold what moves the cursor or turns letters round.
All that is printed goes through `visible`, in a pipe too, since ``| head`` ends at a terminal; only JSON has it as it
is, with ASCII alone.

::

    standard output is    a line that is longer      a table that is wider
    a terminal            goes on in the next one    texts are cut with "…", columns at the end left out, and named
    a pipe or a file      stays as it is             stays as it is

The width is that of ``COLUMNS`` where it is set, else the terminal's.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import IO

from stepwell.errors import StepwellError

__all__ = [
    "ask",
    "cut",
    "display_width",
    "fold",
    "in_a_line",
    "lay_out",
    "print_cut",
    "print_folded",
    "visible",
    "width_of",
]

# a column of texts is not made narrower than this
LEAST = 8
GAP = "  "
# what moves the cursor, changes colours, or turns the order of letters: texts of strangers may hold it
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def width_of(stream: IO[str] | None = None) -> int | None:
    """Return the columns of a stream's terminal, standard output by default; None where it is none."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else None


def display_width(text: str) -> int:
    """Return the columns that a text takes: two for each wide character, none for one that combines with others."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def cut(text: str, width: int | None) -> str:
    """Return the beginning of a text that takes so many columns, with "…" for the rest; None: all of it."""
    if width is None or display_width(text) <= width:
        return text
    room, kept = width - 1, 0
    for kept, each in enumerate(text):  # noqa: B007
        room -= display_width(each)
        if room < 0:
            break
    return f"{text[:kept].rstrip()}…" if width > 0 else ""


def fold(text: str, width: int | None) -> str:
    """Return lines of at most so many columns: longer ones are broken between words, and go on indented.

    Example:
        >>> print(fold("  observation.image  png  96x96x3  uint8  12.4 MB", 30))
          observation.image  png
              96x96x3  uint8  12.4 MB
    """
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def _folded(line: str, width: int) -> Iterable[str]:
    indent = " " * min(len(line) - len(line.lstrip()) + 4, width // 2)
    while display_width(line) > width:
        # where the text itself begins: its indent is no place to break
        start = len(line) - len(line.lstrip())
        places = [found for found in re.finditer(r" +", line) if found.start() > start]
        fitting = [found for found in places if display_width(line[: found.start()]) <= width]
        if not places:
            break
        # a word that is wider than the terminal stays whole
        at = fitting[-1] if fitting else places[0]
        yield line[: at.start()]
        line = indent + line[at.end() :]
        if not line.strip():
            return
    yield line


def visible(text: str) -> str:
    r"""Return a text with control characters written out; its lines and tabs stay.

    Example:
        >>> print(visible("\x1b[31mred"))
        \x1b[31mred
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def in_a_line(text: str) -> str:
    """Return a text, such as a name of metadata, that stands in a line: ends of lines are written out, too."""
    return visible(text).replace("\n", "\\n")


def print_folded(text: object, stream: IO[str] | None = None) -> None:
    """Print a text, folded where it goes to a terminal; see `visible`."""
    stream = sys.stdout if stream is None else stream
    print(fold(visible(str(text)), width_of(stream)), file=stream)


def print_cut(line: str) -> None:
    """Print a line of a list, cut where it is wider than the terminal."""
    # in a name, such as one of metadata, an end of a line would look like the next line of the list
    print(cut(in_a_line(line), width_of()))


def ask(parser: argparse.ArgumentParser, question: str) -> None:
    """Return where the user says yes; raise StepwellError otherwise, or end with 2 where there is nobody to ask."""
    if not sys.stdin.isatty():
        parser.error(f"{question} There is no terminal to answer at: give --yes. Nothing was done.")
    print(fold(visible(f"{question} [y/N] "), width_of(sys.stderr)), end=" ", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise StepwellError("nothing was done.")


def lay_out(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), width: int | None = None
) -> list[str]:
    """Return the lines of a table.

    Args:
        head: names of the columns.
        rows: the cells, a text each.
        right: names of columns that end at the same place: numbers. They are never cut.
        width: columns that it may take; None: as many as it needs. Texts are cut first, then columns are left out from
            the end, and named in a last line.
    """
    rows = [[in_a_line(cell) for cell in row] for row in rows]
    widths = [max(display_width(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    if width is not None:
        widths = _fit(widths, [name not in right for name in head], width)
    shown = len(widths)
    lines = []
    for row in (head, *rows):
        cells = []
        for name, cell, room in zip(head, row, widths, strict=False):
            text = cut(cell, room)
            pad = " " * (room - display_width(text))
            cells.append(pad + text if name in right else text + pad)
        lines.append(GAP.join(cells).rstrip())
    if shown < len(head):
        told = f"left out: {', '.join(head[shown:])}; they are there in a wider terminal, and in a pipe"
        lines += fold(told, width).split("\n")
    return lines


def _fit(widths: Sequence[int], is_text: Sequence[bool], width: int) -> list[int]:
    """Return the widths of as many columns as fit, from the first; texts are made narrower for it."""
    for shown in range(len(widths), 0, -1):
        fitted = list(widths[:shown])
        excess = sum(fitted) + len(GAP) * (shown - 1) - width
        while excess > 0:
            room, widest = max(((fitted[i], i) for i in range(shown) if is_text[i]), default=(0, 0))
            if room <= LEAST:
                break
            fitted[widest] -= 1
            excess -= 1
        if excess <= 0:
            return fitted
    return [min(widths[0], width)]
