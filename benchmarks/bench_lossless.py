"""lossless: images without loss, by every codec for it: bytes, encoding and decoding, beside PNG.

What is stored: PushT as it renders while a scripted pusher plays (drawn alike where it is not installed), an Atari-like
screen of 210 x 160 drawn for the purpose (bricks, a paddle, a ball, a score), the same grey and 84 x 84, and a moving
part of a photo with noise, which no such codec makes small. 960 rows of each.

Codecs are called as a writer and a reader call them, in one thread, without a store: encoding one row after the other,
and decoding one row at random, four that follow each other from a row at random on, and all rows of runs of 64 rows
in order, which is what a sequential read or a pooled order asks for. Rows come out in memory that is used again. For
`delta` the rows that a row differs from are decoded along, in the runs before, too, that a stack of four begins in.

A rate is in rows that were asked for. All rows are decoded and compared with what was encoded before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from report import Row, compare, within
from screens import camera_images, game_screens, grey_screens, pusht_images
from timing import Settings, Work, memcpy_gb_per_s, time_rounds

import stepwell
from stepwell.codecs import SequentialCodec, make_codec

__all__ = ["run"]

NAME = "lossless"
NUM_ROWS = 960
# rows that are decoded in one piece where a whole run is wanted; runs of all codecs end there
RUN = 64
PNG, RIVAL = "png", "imagecodecs png"
KINDS: Mapping[str, Callable[[int], np.ndarray]] = {
    "PushT 96x96x3": pusht_images,
    "screen 210x160x3": game_screens,
    "screen 84x84 grey": grey_screens,
    "camera 96x96x3": camera_images,
}
CODECS: Mapping[str, Mapping[str, object]] = {
    "raw": {"codec": "raw"},
    "png": {"codec": "png"},
    "zstd": {"codec": "zstd"},
    "lz4": {"codec": "lz4"},
    "delta": {"codec": "delta"},
    "delta, every 4": {"codec": "delta", "every": 4},
    "delta, lz4": {"codec": "delta", "compression": "lz4"},
}
# how many rows from one at random on
STACKS = {"a row at random": 1, "4 rows at random": 4}


class Coded:
    """Rows as one codec stores them.

    Args:
        images: uint8 [rows, *shape].
        options: of the feature.
    """

    def __init__(self, images: np.ndarray, options: Mapping[str, object]) -> None:
        self.images = np.ascontiguousarray(images)
        self.codec = make_codec(stepwell.Image(images.shape[1:], **options))
        self.blobs = [np.frombuffer(blob, np.uint8) for row in range(len(images)) for blob in self.encode(row)]
        self.run = int(options.get("every", 16)) if isinstance(self.codec, SequentialCodec) else 1
        self.row_bytes = float(np.mean([len(blob) for blob in self.blobs]))

    def encode(self, row: int) -> list[bytes]:
        """Return a row as it is stored; rows are to be asked for in order."""
        if not isinstance(self.codec, SequentialCodec):
            return [self.codec.encode(self.images[row])]
        if row == 0:
            self._encoder = self.codec.encoder()
        return self._encoder.put(self.images[row])

    def decode(self, first: int, stop: int, out: np.ndarray) -> None:
        """Decode rows that follow each other.

        Args:
            first: of them.
            stop: the row after the last.
            out: uint8 [stop - first, *shape], written.
        """
        if not isinstance(self.codec, SequentialCodec):
            for row in range(first, stop):
                self.codec.decode_into(self.blobs[row], out[row - first])
            return
        for start in range(first - first % self.run, stop, self.run):
            wanted = range(max(first, start), min(stop, start + self.run))
            outs = [out[row - first] for row in wanted]
            self.codec.decode_run(self.blobs[start : wanted.stop], [row - start for row in wanted], outs)


def run(settings: Settings) -> Iterator[Row]:
    """Yield for each kind of images the rows of bytes, of encoding, and of decoding."""
    memcpy = memcpy_gb_per_s(settings)
    for kind, make_images in KINDS.items():
        images = make_images(settings.sized(NUM_ROWS, RUN))
        coded: dict[str, Coded] = {}
        for name, options in CODECS.items():
            try:
                coded[name] = Coded(images, options)
            except stepwell.MissingDependencyError as error:
                yield Row(bench=NAME, case=f"{kind}, {name}", rival=RIVAL, skipped=str(error))
        yield from _bytes(kind, coded, memcpy)
        if PNG in coded:
            yield from _speeds(kind, coded, settings)


def _bytes(kind: str, coded: Mapping[str, Coded], memcpy: float) -> Iterator[Row]:
    for name, each in coded.items():
        _check(each)
        if name != "raw":
            case, raw = f"{kind}, {name}, bytes a row", float(each.images[0].nbytes)
            yield within(NAME, case, "raw", [each.row_bytes], raw, unit="bytes", memcpy_gb_per_s=memcpy)


def _speeds(kind: str, coded: Mapping[str, Coded], settings: Settings) -> Iterator[Row]:
    actions: dict[str, Callable[[Coded], Work]] = {"encoding": _encoding, "all rows of a run": _in_runs}
    actions |= {name: lambda each, number=number: _stacks(each, number) for name, number in STACKS.items()}
    for action, make_work in actions.items():
        rates = time_rounds({name: make_work(each) for name, each in coded.items()}, settings)
        for name in (name for name in coded if name != PNG):
            row = compare(NAME, f"{kind}, {name}, {action}", rates, ours=name, theirs=PNG, unit="rows/s")
            yield replace(row, rival=RIVAL)


def _encoding(coded: Coded) -> Work:
    rows = itertools.cycle(range(len(coded.images)))

    def work() -> float:
        for row in itertools.islice(rows, RUN):
            coded.encode(row)
        return RUN

    return work


def _in_runs(coded: Coded) -> Work:
    starts, out = itertools.cycle(range(0, len(coded.images), RUN)), np.empty_like(coded.images[:RUN])

    def work() -> float:
        start = next(starts)
        coded.decode(start, start + RUN, out)
        return RUN

    return work


def _stacks(coded: Coded, number: int) -> Work:
    firsts = itertools.cycle(np.random.default_rng(0).permutation(len(coded.images) - number + 1).tolist())
    out = np.empty_like(coded.images[:number])

    def work() -> float:
        first = next(firsts)
        coded.decode(first, first + number, out)
        return number

    return work


def _check(coded: Coded) -> None:
    """Compare rows, decoded at once and in stacks, with what was encoded."""
    out = np.empty_like(coded.images)
    coded.decode(0, len(out), out)
    np.testing.assert_array_equal(out, coded.images)
    for first in range(0, len(out) - 4, 7):
        coded.decode(first, first + 4, out[:4])
        np.testing.assert_array_equal(out[:4], coded.images[first : first + 4])
