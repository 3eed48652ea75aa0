"""What words of the command line mean: paths and addresses, ranges, ``NAME=VALUE``; what is none of them ends it.

As argparse wants them: functions of the word, which raise ``ArgumentTypeError``. Importing this module takes nothing
but the standard library, see `stepwell.cli.main`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stepwell.errors import WindowError

__all__ = [
    "days",
    "directory",
    "episode_and_step",
    "episode_range",
    "episodes",
    "field_and_offsets",
    "name_and_codec",
    "name_and_name",
    "option_of_feature",
    "part",
    "picture_path",
    "place",
    "port",
    "positive",
    "rate",
    "seconds",
    "setting",
    "threads",
    "tolerance",
    "whole",
]

FILE = "file://"


def place(text: str) -> Path | str:
    """Return a path, that of a ``file://`` address, too; another address as it is: a path makes one slash of two."""
    if text[: len(FILE)].lower() == FILE:
        from stepwell.files.addresses import path_of_file

        try:
            return Path(path_of_file(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text if "://" in text else Path(text)


def directory(text: str) -> Path:
    """Return the path of what is changed where it lies; of LeRobot's addresses that of a directory, too."""
    rest = text.removeprefix("lerobot://")
    found = Path(rest) if rest != text and rest.startswith((".", "/", "~")) else place(text)
    if isinstance(found, str):
        raise argparse.ArgumentTypeError(
            f"{text!r} is an address, and what is there is read in place, never changed. Give a directory of this "
            "machine; stepwell convert makes a store of a data set"
        )
    return found.expanduser()


def setting(text: str) -> tuple[str, str]:
    """Return name and value of ``OPTION=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not OPTION=VALUE")
    return name, value


def picture_path(text: str) -> Path:
    """Return the path of a PNG file to be written."""
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a PNG file, e.g. sheet.png")
    return Path(text)


def episode_and_step(text: str) -> tuple[int, int | None]:
    """Return episode and step of ``3:17``; no step of ``3``."""
    episode, colon, step = text.partition(":")
    try:
        return int(episode), int(step) if colon else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not EPISODE or EPISODE:STEP, e.g. 3 or 3:17") from None


def field_and_offsets(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a feature and its offsets in steps, of ``action=0:16`` or ``image=-1,0``; none where none are given."""
    # here, since most verbs need no windows
    from stepwell.windows.fields import parse_offsets

    try:
        name, offsets = parse_offsets(text)
    except WindowError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name, tuple(offsets)


def name_and_codec(text: str) -> tuple[str, str]:
    """Return a feature's name and its codec; no name is all images."""
    name, equals, codec = text.rpartition("=")
    if (equals and not name) or not codec:
        raise argparse.ArgumentTypeError(f"{text!r} is not CODEC or FEATURE=CODEC, e.g. jpeg or front=jpeg")
    return name, codec


def name_and_name(text: str) -> tuple[str, str]:
    """Return both names of ``NAME=NEW``."""
    name, _, new = text.partition("=")
    if not name or not new:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NEW, e.g. camera=observation.images.front")
    return name, new


def option_of_feature(text: str) -> tuple[str, str, str]:
    """Return feature, option and value of ``FEATURE.OPTION=VALUE``; no feature is all that are given a codec."""
    place, equals, value = text.partition("=")
    name, dot, option = place.rpartition(".")
    if (dot and not name) or not option or not equals:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not OPTION=VALUE or FEATURE.OPTION=VALUE, e.g. quality=90 or front.quality=90"
        )
    return name, option, value


def episode_range(text: str) -> slice:
    """Return the slice of ``FIRST:STOP``, as Python has it."""
    parts = text.split(":")
    try:
        if len(parts) not in (2, 3):
            raise ValueError
        return slice(*(int(part) if part else None for part in parts))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:STOP, e.g. 0:10 or :-5 or ::2") from None


def episodes(text: str) -> list[int | slice]:
    """Return numbers of episodes and slices, of ``3``, ``0:10`` or ``3,7,20:30``."""
    return [episode_range(each) if ":" in each else whole(each) for each in text.split(",")]


def part(text: str) -> tuple[str, float | list[int | slice]]:
    """Return a name and its episodes: a fraction, or numbers and slices."""
    name, _, chosen = text.partition("=")
    if not name or not chosen or name in (".", "..") or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=EPISODES, e.g. val=0.1 or val=3,7,20:30")
    try:
        return name, float(chosen) if "." in chosen else episodes(chosen)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: {chosen!r} is not a fraction, e.g. 0.1") from None


def whole(text: str) -> int:
    """Return a whole number, negative or not."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return number


def port(text: str) -> int:
    """Return the number of a port, 1 to 65535; 0 is any that is free."""
    number = whole(text)
    if not 0 <= number < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is not the number of a port: 1 to 65535, or 0 for one that is free")
    return number


def threads(text: str) -> int:
    """Return a number of threads or processes, 0 or more."""
    number = whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more; 0 is none but the main one")
    return number


def seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    return _above_zero(text, "a number of seconds")


def days(text: str) -> float:
    """Return a number of days above 0."""
    return _above_zero(text, "a number of days")


def tolerance(text: str) -> float:
    """Return how far numbers may be apart: 0 or more."""
    return 0.0 if text in ("0", "0.0") else _above_zero(text, "a distance, 0 or")


def rate(text: str) -> float:
    """Return a number of rows a second above 0."""
    return _above_zero(text, "a number of rows a second")


def _above_zero(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} above 0")
    return number
