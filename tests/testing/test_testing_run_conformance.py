"""The conformance class of codecs of runs finds the faults that it is there for."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from stepwell.codecs import RowEncoder, register_codec
from stepwell.schema import Array
from stepwell.testing import RunningCodec, SequentialCodecConformance


class Faulty(RowEncoder):
    """An encoder with one fault, around a good one."""

    def __init__(self, codec: RunningCodec, fault: str) -> None:
        self.inner, self.fault, self.codec = RunningCodec.encoder(codec), fault, codec
        self.held: list[bytes] = []

    def put(self, value: Any) -> list[bytes]:
        blobs = self.inner.put(value)
        if self.fault == "reorders":
            self.held += blobs
            return [self.held.pop(), self.held.pop()] if len(self.held) == 2 else []
        return blobs

    def end(self) -> list[bytes]:
        if self.fault == "forgets-end":
            return []
        held, self.held = self.held, []
        return held + self.inner.end()


def faulty(name: str, **methods: Any) -> None:
    def encoder(self: RunningCodec) -> RowEncoder:
        return Faulty(self, name)

    register_codec(type(name, (RunningCodec,), {"name": f"test-run-{name}", "encoder": encoder, **methods}))


def decode_all(self: RunningCodec, blobs: Sequence[Any], wanted: Sequence[int], outs: Sequence[Any], size: Any) -> None:
    """Decode, as if all rows were wanted."""
    RunningCodec.decode_run(self, blobs, range(len(outs)), outs, size)


def decode_whole_runs(self: RunningCodec, blobs: Any, wanted: Any, outs: Any, size: Any = None) -> None:
    if len(blobs) < self.run:
        raise IndexError("a run is cut short")
    RunningCodec.decode_run(self, blobs, wanted, outs, size)


def decode_unchecked(self: RunningCodec, blobs: Any, wanted: Any, outs: Any, size: Any = None) -> None:
    row = np.zeros(self.feature.fixed_shape, self.feature.np_dtype)
    for place, blob in enumerate(blobs):
        row = row + np.frombuffer(blob[1:].tobytes().ljust(row.nbytes, b"\0")[: row.nbytes], row.dtype)
        if place in wanted:
            outs[list(wanted).index(place)][...] = row


def decode_with_memory(self: RunningCodec, blobs: Any, wanted: Any, outs: Any, size: Any = None) -> None:
    RunningCodec.decode_run(self, blobs, wanted, outs, size)
    for out in outs:
        out[...] += self.__dict__.setdefault("calls", 0) > 20
    self.__dict__["calls"] += 1


def decode_beside(self: RunningCodec, blobs: Any, wanted: Any, outs: Any, size: Any = None) -> None:
    RunningCodec.decode_run(self, blobs, wanted, outs, size)
    for out in outs:
        if out.base is not None:
            out.base[0] = 0


faulty("forgets-end")
faulty("reorders")
faulty(
    "ignores-wanted",
    decode_run=lambda self, blobs, wanted, outs, size=None: decode_all(self, blobs, wanted, outs, size),
)
faulty("whole-runs", decode_run=decode_whole_runs)
faulty("unchecked", decode_run=decode_unchecked)
faulty("remembers", decode_run=decode_with_memory)
faulty("beside", decode_run=decode_beside)

FAULTS: list[tuple[str, Callable[[SequentialCodecConformance], None]]] = [
    ("forgets-end", SequentialCodecConformance.test_every_episode_begins_with_a_sync_row),
    ("forgets-end", SequentialCodecConformance.test_encoder_returns_every_row_once_and_in_order),
    ("reorders", SequentialCodecConformance.test_runs_decode_from_their_sync_row_on),
    ("ignores-wanted", SequentialCodecConformance.test_any_rows_of_a_run_decode_alike),
    ("whole-runs", SequentialCodecConformance.test_runs_decode_from_their_sync_row_on),
    ("unchecked", SequentialCodecConformance.test_run_without_its_sync_row_is_refused),
    ("remembers", SequentialCodecConformance.test_threads_share_the_decoding_of_runs),
    ("beside", SequentialCodecConformance.test_corrupt_run_is_refused_or_harmless),
]


@pytest.mark.parametrize(("fault", "test"), FAULTS)
def test_conformance_finds_the_fault(fault: str, test: Callable[[SequentialCodecConformance], None]) -> None:
    class Conformance(SequentialCodecConformance):
        # a lag, so that an end has something to return
        feature = Array(6, "int16", codec=f"test-run-{fault}", lag=2 if fault == "forgets-end" else 0)

    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        test(Conformance())


@pytest.mark.parametrize("claim", ["detects_changes", "has_places"])
def test_conformance_finds_that_a_codec_does_not_detect_what_it_claims(claim: str) -> None:
    class Conformance(SequentialCodecConformance):
        feature: ClassVar[Any] = Array(6, "int16", codec="running")

    setattr(Conformance, claim, True)
    test = {
        "detects_changes": SequentialCodecConformance.test_corrupt_run_is_refused_or_harmless,
        "has_places": SequentialCodecConformance.test_run_that_lacks_a_row_is_refused,
    }[claim]
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(Conformance())
