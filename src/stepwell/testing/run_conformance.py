"""What every codec whose rows need rows before them has to keep, as a class of tests to subclass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.errors import DecodeError
from stepwell.testing.arrays import random_array, smooth_image
from stepwell.testing.conformance import (
    GUARD,
    GUARD_BYTES,
    CodecConformance,
    corruptions,
    guarded,
    is_same,
    psnr_db,
    view,
)

__all__ = ["SequentialCodecConformance"]


class SequentialCodecConformance(CodecConformance):
    """Tests that a codec of runs keeps the interface: those of every codec, on runs of one row, and these.

    Attributes:
        num_rows: how many rows of an episode to try; more than a run.
        has_places: whether the codec can tell that a row of a run is missing.

    Example::

        class TestMyCodec(SequentialCodecConformance):
            feature = Image((64, 64), codec="my")
    """

    num_rows: ClassVar[int] = 41
    has_places: ClassVar[bool] = False

    def episode(self) -> list[npt.NDArray[Any]]:
        """Return the values of an episode, which change a little from row to row; override it for others."""
        if not self.is_lossless:
            return [smooth_image(self.feature, seed) for seed in range(self.num_rows)]
        rows, other = random_array(self.feature, 0), random_array(self.feature, 1)
        episode = []
        for number in range(self.num_rows):
            rows = rows.copy()
            rows.reshape(-1)[number % max(rows.size, 1) :][:1] = other.reshape(-1)[number % max(rows.size, 1) :][:1]
            episode.append(rows)
        return episode

    def test_encoder_returns_every_row_once_and_in_order(self) -> None:
        """All rows come out, at the latest at the end, and the first is a sync row."""
        codec, episode = self._codec(), self.episode()
        for front in (1, 2, len(episode)):
            blobs = _encode_rows(codec, episode[:front])
            assert len(blobs) == front
            assert _is_sync(codec, blobs[0])

    def test_every_episode_begins_with_a_sync_row(self) -> None:
        """What was put before `end` is not needed after it, wherever in a run the end came."""
        codec, episode = self._codec(), self.episode()
        encoder = codec.encoder()
        for length in (1, 2, 3, len(episode)):
            blobs = [blob for value in episode[:length] for blob in encoder.put(value)] + encoder.end()
            assert len(blobs) == length
            assert _is_sync(codec, blobs[0])
            self._check_rows(codec, blobs, episode[:length])
        encoder.close()
        encoder.close()

    def test_runs_decode_from_their_sync_row_on(self) -> None:
        """Every run needs nothing but its own rows, and of those none behind the last that is wanted."""
        codec, episode = self._codec(), self.episode()
        for start, run in _runs_of(codec, _encode_rows(codec, episode)):
            for front in range(1, len(run) + 1):
                (out,) = _decode_rows(codec, run[:front], [front - 1])
                self._check_row(out, episode[start + front - 1])

    def test_any_rows_of_a_run_decode_alike(self) -> None:
        """A row comes out the same whichever others are asked for."""
        codec, rng = self._codec(), np.random.default_rng(0)
        for _, run in _runs_of(codec, _encode_rows(codec, self.episode())):
            whole = _decode_rows(codec, run, range(len(run)))
            for _ in range(8):
                wanted = np.flatnonzero(rng.random(len(run)) < rng.random()).tolist()
                for place, out in zip(wanted, _decode_rows(codec, run, wanted), strict=True):
                    assert is_same(out, whole[place])

    def test_threads_share_the_decoding_of_runs(self) -> None:
        """Eight threads that decode runs of one instance at once disturb nobody."""
        codec = self._codec()
        runs = [run for _, run in _runs_of(codec, _encode_rows(codec, self.episode()))]
        rows = [_decode_rows(codec, run, range(len(run))) for run in runs]

        def work(k: int) -> bool:
            k %= len(runs)
            found = _decode_rows(codec, runs[k], range(len(runs[k])))
            return all(is_same(a, b) for a, b in zip(found, rows[k], strict=True))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(64)))

    def test_corrupt_run_is_refused_or_harmless(self) -> None:
        """A corrupt row raises DecodeError or gives other pixels, and nothing beside its memory is written."""
        codec, episode = self._codec(), self.episode()
        run = max((run for _, run in _runs_of(codec, _encode_rows(codec, episode))), key=len)
        rows = _decode_rows(codec, run, range(len(run)))
        for place, blob in enumerate(run):
            for corrupt in corruptions(view(blob), self.num_corruptions // len(run) + 1):
                found = _decode_run_guarded(codec, [*run[:place], corrupt.tobytes(), *run[place + 1 :]])
                if self.detects_changes and found is not None:
                    assert all(is_same(a, b) for a, b in zip(found, rows, strict=True))

    def test_run_without_its_sync_row_is_refused(self) -> None:
        """A run whose first rows are missing raises DecodeError."""
        codec = self._codec()
        run = max((run for _, run in _runs_of(codec, _encode_rows(codec, self.episode()))), key=len)
        for start in range(1, len(run)):
            with pytest.raises(DecodeError):
                _decode_rows(codec, run[start:], [0])

    def test_run_that_lacks_a_row_is_refused(self) -> None:
        """A row that stands where another belongs raises DecodeError."""
        if not self.has_places:
            pytest.skip("this codec cannot tell")
        codec = self._codec()
        run = max((run for _, run in _runs_of(codec, _encode_rows(codec, self.episode()))), key=len)
        for missing in range(1, len(run) - 1):
            with pytest.raises(DecodeError):
                _decode_rows(codec, run[:missing] + run[missing + 1 :], range(len(run) - 1))

    def _codec(self) -> SequentialCodec:
        codec = make_codec(self.feature)
        assert isinstance(codec, SequentialCodec)
        assert codec.is_sequential
        return codec

    def _check_rows(self, codec: SequentialCodec, blobs: list[bytes], episode: list[npt.NDArray[Any]]) -> None:
        for start, run in _runs_of(codec, blobs):
            for place, out in enumerate(_decode_rows(codec, run, range(len(run)))):
                self._check_row(out, episode[start + place])

    def _check_row(self, out: npt.NDArray[Any], value: npt.NDArray[Any]) -> None:
        if self.is_lossless:
            assert is_same(out, value)
        else:
            assert psnr_db(out, value) >= self.min_psnr_db


def _encode_rows(codec: SequentialCodec, episode: Sequence[Any]) -> list[bytes]:
    """Return the blobs of an episode."""
    encoder = codec.encoder()
    try:
        return [blob for value in episode for blob in encoder.put(value)] + encoder.end()
    finally:
        encoder.close()


def _is_sync(codec: SequentialCodec, blob: bytes) -> bool:
    """Whether a blob begins a run."""
    return codec.is_sync(blob)


def _runs_of(codec: SequentialCodec, blobs: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the runs of an episode, each with the number of its first row."""
    starts = [number for number, blob in enumerate(blobs) if _is_sync(codec, blob)]
    for start, stop in zip(starts, [*starts[1:], len(blobs)], strict=True):
        yield start, blobs[start:stop]


def _decode_rows(codec: SequentialCodec, run: Sequence[bytes], wanted: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Return the wanted rows of a run."""
    outs = [np.empty(codec.feature.fixed_shape, codec.feature.np_dtype) for _ in wanted]
    codec.decode_run([view(blob) for blob in run], wanted, outs)
    return outs


def _decode_run_guarded(codec: SequentialCodec, run: list[bytes]) -> list[npt.NDArray[Any]] | None:
    """Return all rows of a run, decoded into guarded memory, or None where it was refused."""
    memories = [guarded(codec.feature) for _ in run]
    outs = [out for _, out in memories]
    try:
        codec.decode_run([view(blob) for blob in run], range(len(run)), outs)
    except DecodeError:
        return None
    finally:
        for memory, _ in memories:
            assert (memory[:GUARD_BYTES] == GUARD).all()
            assert (memory[-GUARD_BYTES:] == GUARD).all()
    return outs
