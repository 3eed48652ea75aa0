"""What every codec has to keep, as a class of tests to subclass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from stepwell.codecs import Codec, SequentialCodec, make_codec
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Feature
from stepwell.testing.stores import random_array, smooth_image

__all__ = ["CodecConformance", "SequentialCodecConformance"]

GUARD = 0xAB
GUARD_BYTES = 256


class CodecConformance:
    """Tests that a codec keeps the interface; subclass it in a test file and name a feature.

    Attributes:
        feature: what the codec stores; its ``codec`` must be registered.
        is_lossless: whether a row comes back bit for bit. Else its peak signal-to-noise ratio is looked at.
        min_psnr_db: of a lossy codec, on smooth images, in decibels.
        detects_truncation: whether the codec can tell that a row was cut off (raw text cannot).
        detects_changes: whether it can tell that bytes were changed, by a checksum of its own.
        num_corruptions: how many corrupt rows to try.

    Example::

        class TestMyCodec(CodecConformance):
            feature = Array((64, 64), "float32", codec="my")
    """

    feature: ClassVar[Feature]
    is_lossless: ClassVar[bool] = True
    min_psnr_db: ClassVar[float] = 30.0
    detects_truncation: ClassVar[bool] = True
    detects_changes: ClassVar[bool] = False
    num_corruptions: ClassVar[int] = 300

    def examples(self) -> list[Any]:
        """Return the values to store; override it for a feature that wants special ones."""
        if self.feature.kind == "text":
            return ["", "a", "Stufenbrunnen", "बावड़ी " * 50, "\0"]
        if self.feature.kind == "bytes":
            return [b"", b"\0", bytes(range(256)) * 4]
        if not self.is_lossless:
            return [smooth_image(self.feature, seed) for seed in range(4)]
        return [random_array(self.feature, seed, size=seed) for seed in range(4)]

    def test_codec_is_found_by_its_name(self) -> None:
        """`make_codec` finds the codec under the name that it states."""
        codec = make_codec(self.feature)
        assert codec.name == self.feature.codec
        assert codec.feature == self.feature

    def test_round_trip_keeps_the_value(self) -> None:
        """What was encoded comes back: equal, or near enough when lossy."""
        codec = make_codec(self.feature)
        for value in self.examples():
            decoded = codec.decode(_encoded(codec, value))
            if self.is_lossless:
                assert is_same(decoded, value)
            else:
                assert (decoded.dtype, decoded.shape) == (value.dtype, value.shape)
                assert psnr_db(decoded, value) >= self.min_psnr_db

    def test_decode_returns_memory_of_its_own(self) -> None:
        """A decoded row outlives the map that it was read from."""
        codec = make_codec(self.feature)
        for value in self.examples():
            blob = _encoded(codec, value).copy()
            decoded = codec.decode(blob)
            if isinstance(decoded, np.ndarray):
                assert decoded.flags.writeable
                assert not np.shares_memory(decoded, blob)

    def test_decode_and_decode_into_agree(self) -> None:
        """Both ways of decoding give the same row."""
        if self.feature.is_ragged:
            pytest.skip("decode_into is for features of fixed shape")
        codec = make_codec(self.feature)
        for value in self.examples():
            blob = _encoded(codec, value)
            _, out = guarded(self.feature)
            codec.decode_into(blob, out)
            assert is_same(out, codec.decode(blob))

    def test_threads_share_one_instance(self) -> None:
        """Eight threads that encode and decode at once disturb nobody."""
        codec = make_codec(self.feature)
        values = self.examples()
        blobs = [codec.encode(value) for value in values]
        rows = [codec.decode(np.frombuffer(blob, np.uint8)) for blob in blobs]

        def work(k: int) -> bool:
            k %= len(values)
            return codec.encode(values[k]) == blobs[k] and is_same(codec.decode(view(blobs[k])), rows[k])

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(160)))

    def test_truncated_row_is_refused(self) -> None:
        """A row that was cut off raises DecodeError."""
        if not self.detects_truncation:
            pytest.skip("this codec cannot tell")
        codec = make_codec(self.feature)
        blob = _encoded(codec, self.examples()[-1])
        for size in {0, 1, blob.size // 4, blob.size // 2, blob.size * 3 // 4}:
            with pytest.raises(DecodeError):
                codec.decode(blob[:size])

    def test_corrupt_row_is_refused_or_harmless(self) -> None:
        """A corrupt row raises DecodeError or decodes to the right dtype and shape, and nothing else is written."""
        codec = make_codec(self.feature)
        blob = _encoded(codec, self.examples()[-1])
        row = codec.decode(blob)
        for corrupt in corruptions(blob, self.num_corruptions):
            try:
                decoded = _decode_guarded(codec, corrupt)
            except DecodeError:
                continue
            assert type(decoded) is type(row)
            if self.detects_changes:
                assert is_same(decoded, row)

    def test_unknown_option_is_refused(self) -> None:
        """An option that the codec does not have raises SchemaError and is named."""
        with pytest.raises(SchemaError, match="no_such_option"):
            make_codec(replace(self.feature, options=(*self.feature.options, ("no_such_option", 1))))


def view(blob: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(blob, np.uint8)


def _encoded(codec: Codec, value: Any) -> npt.NDArray[np.uint8]:
    """Return an encoded row as a store has it: read-only, in the middle of other bytes."""
    blob = codec.encode(value)
    assert type(blob) is bytes
    return view(b"\xff" * 13 + blob + b"\xff" * 13)[13 : 13 + len(blob)]


def is_same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return bool(a == b)


def psnr_db(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    peak = np.iinfo(b.dtype).max if b.dtype.kind in "iu" else 1.0
    mean_square = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return float(10 * np.log10(peak**2 / max(mean_square, 1e-12)))


def guarded(feature: Feature) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return memory, and an array of the feature in its middle."""
    memory = np.full(feature.row_bytes + 2 * GUARD_BYTES, GUARD, np.uint8)
    return memory, np.ndarray(feature.fixed_shape, feature.np_dtype, buffer=memory, offset=GUARD_BYTES)


def _decode_guarded(codec: Codec, blob: npt.NDArray[np.uint8]) -> Any:
    """Decode a row, into guarded memory where its shape is fixed, and check that the guards stand."""
    if codec.feature.is_ragged:
        return codec.decode(blob)
    memory, out = guarded(codec.feature)
    try:
        codec.decode_into(blob, out)
    finally:
        assert (memory[:GUARD_BYTES] == GUARD).all()
        assert (memory[-GUARD_BYTES:] == GUARD).all()
    return out


def corruptions(blob: npt.NDArray[np.uint8], count: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the row cut off, with a flipped bit, with noise in it, and with a changed byte among its first 64."""
    rng = np.random.default_rng(0)
    for k in range(count):
        corrupt, position = blob.copy(), int(rng.integers(blob.size))
        if k % 4 == 0:
            corrupt = corrupt[:position]
        elif k % 4 == 1:
            corrupt[position] ^= 1 << rng.integers(8)
        elif k % 4 == 2:
            corrupt[position : position + 8] = rng.integers(0, 256, corrupt[position : position + 8].size)
        else:
            corrupt[position % 64] = rng.integers(256)
        yield corrupt


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
