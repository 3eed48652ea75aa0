"""Replay buffers of diffusion policy: all steps in zarr arrays, and where each episode ends.

::

    data/action  [N, ...]     | e0 . . . | e1 . . | e2 . . .      a row a step, in chunks of rows
    data/img     [N, ...]     |          |        |
    meta/episode_ends [E]             4        7         11       the step after each episode's last

Source: the code release of Chi et al., "Diffusion Policy", 2023, whose files are of zarr format 2; zarr reads 3, too.
"""

from __future__ import annotations

import functools
import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, is_too_large, max_row_bytes
from stepwell.errors import FormatError, MissingDependencyError, StepwellError
from stepwell.formats.reader import Reader, check_told_apart, left_out, store_schema
from stepwell.formats.registry import register_reader
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Array, Feature, Image

__all__ = ["ZarrReader"]

MISSING = ("error", "fill")
METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
# of blosc's header: its size, and where in it the size of the whole stands
HEADER_BYTES, SIZE = 16, slice(12, 16)
ENDS = "meta/episode_ends"
SIGNS = (".zarray", "zarr.json")
IMAGES = ("keep", "uint8")
# of zarr 2 and 3, where an array tells of its codecs; one of numcodecs would run what it reads
CODECS = ("compressor", "filters", "codecs")
PICKLE = "pickle"
# rows that compress better than that are claimed by a damaged header, not stored
MAX_RATIO = 4096
MIN_STORED = 1 << 16


def checked_store(source: str, missing_chunks: str) -> Any:
    """Return a zarr store for reading whose chunks are looked at before they are decoded."""
    try:
        import zarr
    except ImportError as error:
        raise MissingDependencyError.of("zarr", "zarr") from error
    is_zip = source.lower().endswith(".zip")
    files = zarr.storage.ZipStore(source, mode="r") if is_zip else zarr.storage.LocalStore(source, read_only=True)
    store = _store_class()(files)
    store.told = source, missing_chunks
    return store


def watch_array(array: Any) -> None:
    """Have the sizes of an array's chunks compared with what blosc's headers say, if it packs them."""
    codec = array.metadata.compressor if array.metadata.zarr_format == 2 else array.metadata.codecs[-1]
    if "blosc" in type(codec).__name__.lower():
        array.store.packed.add(f"{array.path}/")


@functools.cache
def _store_class() -> Any:
    from zarr.storage import WrapperStore

    class CheckedStore(WrapperStore):  # type: ignore[misc]
        """Files whose chunks are looked at."""

        def __init__(self, store: Any) -> None:
            super().__init__(store)
            self.told: tuple[str, str] = "", MISSING[0]
            # beginnings of the names of chunks that blosc packed
            self.packed: set[str] = set()

        def _with_store(self, store: Any) -> Any:
            made = type(self)(store)
            made.told, made.packed = self.told, self.packed
            return made

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            """Return what a file holds."""
            found = await self._store.get(key, prototype, byte_range)
            if key.endswith("/") or key.rpartition("/")[2] in METADATA:
                return found
            source, missing_chunks = self.told
            if found is None and missing_chunks == "error":
                raise FormatError(
                    f"{source}: chunk {key} is not there. Copy it again. Writers may leave a chunk out that holds the "
                    'fill value alone: if this one did, missing_chunks="fill" reads it so.'
                )
            if found is not None and len(found) == 0:
                raise FormatError(f"{source}: chunk {key} is empty: it is cut off. Copy it again.")
            if found is not None and byte_range is None and any(map(key.startswith, self.packed)):
                _check_size(f"{source}: chunk {key}", found.to_bytes())
            return found

    return CheckedStore


def _check_size(where: str, data: bytes) -> None:
    told = int.from_bytes(data[SIZE], "little")
    if len(data) < HEADER_BYTES or told != len(data):
        raise FormatError(f"{where} has {len(data)} bytes, and its header says {told}: it is damaged. Copy it again.")


@register_reader
class ZarrReader(Reader):
    """Episodes of a zarr replay buffer.

    Args:
        source: the group's directory, or a ``.zip`` of it.
        images: "keep" (default): arrays as they are, images of float32, too; "uint8": arrays [N, H, W, 1 | 3 | 4] of
            floats become images of uint8, if all their values are whole numbers from 0 to 255.
        ignore: names of features to leave out.
        missing_chunks: "error" (default): a chunk that is not there is an error; "fill": it holds the array's fill
            value. Some writers leave such chunks out: zarr 3 does, zarr 2 does not unless it is asked to.

    Notes:
        As for `Reader`. Features are named as the arrays of ``data``, ``obs.img`` of a group in it. Nothing says how an
        episode ended: it is neither terminated nor truncated. A chunk is decompressed once where episodes are read in
        order.
    """

    name = "zarr"

    def __init__(
        self,
        source: str,
        *,
        images: str = "keep",
        ignore: Sequence[str] | str = (),
        missing_chunks: Literal["error", "fill"] = "error",
    ) -> None:
        super().__init__(source)
        if missing_chunks not in MISSING:
            raise FormatError(f"missing_chunks={missing_chunks!r}. Allowed: {', '.join(MISSING)}.")
        self._missing_chunks = missing_chunks
        if images not in IMAGES:
            raise FormatError(f"images={images!r}. Allowed: {', '.join(IMAGES)}.")
        self._opened: tuple[int, dict[str, Any]] | None = None
        self._held: dict[str, tuple[int, npt.NDArray[Any]]] = {}
        with self._naming(ENDS):
            ends = np.asarray(self._array(ENDS)[...])
        self._starts = _starts(ends, source)
        ignored = left_out(ignore, self._arrays(), source)
        arrays = {name: array for name, array in self._arrays().items() if name not in ignored}
        self.schema = store_schema({name: _feature(array, images) for name, array in arrays.items()}, source)
        for name, array in arrays.items():
            if array.shape[:1] != (self._starts[-1],):
                raise FormatError(
                    f"{source}, data/{name} has shape {array.shape}, {ENDS} ends with {self._starts[-1]}. It should "
                    f"have a row a step. Leave it out with ignore=[{name!r}]."
                )
        self.metadata = {"zarr": {"arrays": {name: list(array.shape) for name, array in arrays.items()}}}

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it has ``data`` and ``meta/episode_ends``; see `Reader.accepts`."""
        if "://" in source:
            return False
        try:
            if source.lower().endswith(".zip"):
                with zipfile.ZipFile(source) as archive:
                    return any(f"{ENDS}/{sign}" in archive.NameToInfo for sign in SIGNS)
            return any(Path(source, ENDS, sign).is_file() for sign in SIGNS)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
            return False

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> EpisodeData:
        start, stop = (int(place) for place in self._starts[index : index + 2])
        columns = {}
        for name, feature in self.schema.items():
            where = f"rows {start} to {stop} of data/{name}"
            with self._naming(where):
                columns[name] = _values(self._rows(name, start, stop), feature, f"{self.source}, {where}")
        return EpisodeData(columns)

    def label(self, index: int) -> str:
        """Return the rows of an episode; see `Reader.label`."""
        return f"episode {index} (rows {self._starts[index]} to {self._starts[index + 1]}) of {self.source}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_held": {}}

    def _rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of an array; what was read of their last chunk is kept, since the next episode begins in it."""
        array = self._arrays()[name]
        chunk = max(1, int((array.shards or array.chunks)[0]))
        first, held = self._held.get(name, (0, np.empty(0)))
        if not first <= start <= first + len(held):
            first, held = start // chunk * chunk, np.empty(0)
        end = first + len(held)
        if stop > end:
            last = min(-(-stop // chunk) * chunk, int(array.shape[0]))
            self._check_stored(name, array, last - end)
            kept = held[max(0, start - first) :]
            more = np.asarray(array[end:last])
            first, held = end - len(kept), np.concatenate([kept, more]) if len(kept) else more
            self._held[name] = first, held
        return held[start - first : stop - first]

    def _check_stored(self, name: str, array: Any, rows: int) -> None:
        """Refuse to read what is not stored: memory follows the shape that a header claims."""
        claimed = rows * math.prod(array.shape[1:]) * array.dtype.itemsize
        # a chunk is unpacked whole
        most = max(claimed, math.prod(array.chunks) * array.dtype.itemsize)
        if most > max_row_bytes() and is_too_large(most, int(array.nbytes_stored())):
            raise FormatError(f"{self.source}, data/{name}: {rows} rows would take {most:,} bytes. {WHAT_TO_SET}")
        # what is stored is found by listing all chunks, which takes too long to be done for each of them
        if claimed > MAX_RATIO * MIN_STORED and claimed > MAX_RATIO * (stored := int(array.nbytes_stored())):
            raise FormatError(
                f"{self.source}, data/{name}: {rows} rows would take {claimed} bytes, of which {stored} are stored."
            )

    def _arrays(self) -> dict[str, Any]:
        """Return the arrays of ``data`` by name; opened in each process."""
        if self._opened is None or self._opened[0] != os.getpid():
            with self._naming("data"):
                group = self._group()["data"]
                members = dict(group.members(max_depth=None))
                found = {path: each for path, each in members.items() if hasattr(each, "chunks")}
                for path, each in found.items():
                    _check_is_plain(f"data/{path}", each)
                    watch_array(each)
                arrays = [(path.replace("/", "."), each) for path, each in found.items()]
                check_told_apart([name for name, _ in arrays], self.source)
                self._opened = os.getpid(), dict(sorted(arrays, key=itemgetter(0)))
                self._held = {}
        if not self._opened[1]:
            raise FormatError(f"{self.source} has no arrays in data.")
        return self._opened[1]

    def _array(self, name: str) -> Any:
        array = self._group()[name]
        _check_is_plain(name, array)
        if (
            array.ndim != 1
            or array.dtype.kind not in "iu"
            or array.size > MAX_RATIO * max(int(array.nbytes_stored()), MIN_STORED)
        ):
            raise FormatError(
                f"{self.source}, {name} is {array.dtype} {array.shape}. It should be a list of step numbers."
            )
        watch_array(array)
        return array

    def _group(self) -> Any:
        try:
            import zarr
        except ImportError as error:
            raise MissingDependencyError.of("zarr", "zarr") from error
        if self.source.lower().endswith(".zip"):
            _check_archive(self.source)
        return zarr.open_group(checked_store(self.source, self._missing_chunks), mode="r")

    @contextmanager
    def _naming(self, where: str) -> Iterator[None]:
        """Make whatever zarr and its codecs raise name the group and what was read."""
        try:
            yield
        except StepwellError:
            raise
        except Exception as error:
            raise FormatError(f"{self.source}, {where}: {type(error).__name__}: {error}") from error


def _check_is_plain(path: str, array: Any) -> None:
    """Refuse a name that leads elsewhere, and the one codec that would run what it reads."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise FormatError(f"{path!r} is no name of an array.")
    told = array.metadata.to_dict()
    if PICKLE in json.dumps([told.get(part) for part in CODECS], default=str):
        raise FormatError(f"{path} is stored by {PICKLE}, which is code: it is not read. Write it by another codec.")


def _check_archive(source: str) -> None:
    """Refuse an archive whose members claim more than it can hold: memory follows the claim."""
    size = Path(source).stat().st_size
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            if member.compress_size > size or member.file_size > MAX_RATIO * max(member.compress_size, 1):
                raise FormatError(
                    f"{source}: {member.filename} claims {member.file_size} bytes in {member.compress_size}: damaged."
                )


def _starts(ends: npt.NDArray[Any], source: str) -> npt.NDArray[np.int64]:
    """Return the first step of each episode, and the number of steps."""
    starts = np.concatenate([[0], ends.astype(np.int64)])
    if len(ends) == 0 or (np.diff(starts) < 1).any():
        raise FormatError(
            f"{source}, {ENDS} is {ends[:8].tolist()}... Allowed: ascending numbers of steps, at least one."
        )
    return starts


def _feature(array: Any, images: str) -> Feature:
    if array.dtype.kind not in "biuf":
        raise FormatError(f"{array.name} has elements of {array.dtype}. Allowed: numbers and bool.")
    shape = tuple(int(size) for size in array.shape[1:])
    is_image = len(shape) == 3 and shape[2] in (1, 3, 4) and 0 not in shape
    if is_image and (array.dtype == np.uint8 or (images == "uint8" and array.dtype.kind == "f")):
        return Image(shape)
    return Array(shape, array.dtype.newbyteorder("="))


def _values(rows: npt.NDArray[Any], feature: Feature, where: str) -> npt.NDArray[Any]:
    """Return rows as the feature's dtype; floats become bytes only where nothing is lost."""
    if rows.dtype.newbyteorder("=") == feature.np_dtype:
        return rows.astype(feature.np_dtype, copy=False)
    with np.errstate(invalid="ignore"):
        whole = rows.astype(feature.np_dtype)
    if not np.array_equal(whole, rows):
        raise FormatError(f'{where}: values that are no whole numbers from 0 to 255. Keep them all: images="keep".')
    return whole
