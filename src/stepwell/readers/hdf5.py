"""HDF5 files as readers need them: opened in each process, rows of an episode, errors that name the file."""

from __future__ import annotations

import atexit
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, is_too_large
from stepwell.errors import FormatError, MissingDependencyError, StepwellError, UntrustedFileError
from stepwell.files.local_files import read_regular
from stepwell.formats.images import image_format
from stepwell.formats.reader import check_told_apart
from stepwell.json_text import parse_json
from stepwell.references.file_spans import FileSpans
from stepwell.schema import Array, Bytes, Feature, Image, Text

__all__ = [
    "SILENT_SECONDS",
    "Hdf5Files",
    "can_stay",
    "datasets_of",
    "feature_of",
    "file_rows",
    "holds_files",
    "is_hdf5",
    "lies_plain",
    "plain_rows",
    "read_attributes",
    "read_rows",
    "read_varying",
    "row_offsets",
    "rows_in_file",
    "spans_of",
    "survey",
    "top_names",
    "value_of",
]

SILENT_SECONDS = 60.0
"""Silence of the process after which its file counts as damaged; it begins to answer in milliseconds."""

_CHILD: list[_Child] = []
_TURN = [threading.Lock()]
SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".hdf5", ".h5", ".hdf", ".he5")
# smaller rows cost more as references than as copies
MIN_SPAN_BYTES = 1024
# deflate makes at most that many bytes of one
MAX_RATIO = 1100
MIN_STORED = 1 << 16
MAX_DEPTH = 32
# elements of a value that is metadata
MAX_TOLD = 4096
# of each dataset: where episodes are shorter than chunks, a chunk is unpacked once
CHUNK_CACHE_BYTES = 16 << 20


def survey(path: str) -> list[str]:
    """Look through all groups and datasets of a file, and return the names at its top."""
    told, _ = _ask(path, "the file", {"ask": "survey"})
    names: list[str] = told["names"]
    return names


def read_varying(path: str, name: str, start: int | None, stop: int | None) -> list[bytes]:
    """Return values of a dataset whose elements vary in length."""
    told, rest = _ask(path, name, {"ask": "values", "start": start, "stop": stop})
    values, place = [], 0
    for size in told["sizes"]:
        values.append(rest[place : place + size])
        place += size
    return values


def read_attributes(path: str, name: str) -> dict[str, Any]:
    """Return the attributes of a group or dataset, as JSON has them."""
    told, _ = _ask(path, name, {"ask": "attributes"})
    found: dict[str, Any] = told["attributes"]
    return found


def _ask(path: str, name: str, more: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    if find_spec("h5py") is None:
        raise MissingDependencyError.of("h5py", "hdf5")
    # threads may have readers of their own, but there is one process that answers
    with _TURN[0]:
        return _answer(path, name, more)


def _answer(path: str, name: str, more: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    request = {"path": os.path.abspath(path), "name": name, **more}  # noqa: PTH100  links stay
    child = _running()
    try:
        child.connection.send_bytes(json.dumps(request).encode())
        # an empty message says that it goes on
        while not (message := _receive(child)):
            pass
        told: dict[str, Any] = parse_json(message)
        values = _receive(child) if "sizes" in told else b""
    except (OSError, EOFError, TimeoutError) as error:
        end_child()
        reason = "libhdf5 ended the process that read it" if isinstance(error, EOFError | ConnectionError) else error
        raise FormatError(f"{path}, {name}: {reason}. The file is damaged.") from error
    except BaseException:
        # of one that was interrupted, what still comes would be taken for the next answer
        end_child()
        raise
    if "outside" in told:
        raise UntrustedFileError(
            f"{path}: {told['outside']}, another file, which was not read. If you know where it comes from, copy what "
            "it leads to into one file, with h5copy or h5repack."
        )
    if "error" in told:
        raise FormatError(f"{path}, {name}: {told['error']}. It is damaged, or not the file that it should be.")
    return told, values


def _receive(child: _Child) -> bytes:
    if not child.connection.poll(SILENT_SECONDS):
        raise TimeoutError(f"libhdf5 did not come back from it within {SILENT_SECONDS:g} s")
    return child.connection.recv_bytes()


class _Child:
    """The process that answers this one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "stepwell.readers.hdf5_child", str(theirs.fileno())]
            null = subprocess.DEVNULL
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=null, stdout=null, stderr=null)
        self.connection = Connection(ours.detach())
        self.owner = os.getpid()

    def end(self) -> None:
        """End the process; in a child of a fork let go of it, as the parent goes on with it."""
        self.connection.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        else:
            self.process.returncode = 0


def _running() -> _Child:
    """Return this process's reader, started if there is none."""
    if _CHILD and (_CHILD[0].owner != os.getpid() or _CHILD[0].process.poll() is not None):
        end_child()
    if not _CHILD:
        _CHILD.append(_Child())
    return _CHILD[0]


def end_child() -> None:
    """End the process; the next request starts another."""
    while _CHILD:
        _CHILD.pop().end()


def _replace_lock() -> None:
    """Replace the lock in a child of a fork, where no thread releases the parent's."""
    _TURN[0] = threading.Lock()


atexit.register(end_child)
os.register_at_fork(after_in_child=_replace_lock)


def is_hdf5(source: str) -> bool:
    """Return whether a path is a file that begins as HDF5 does."""
    if "://" in source or not source.lower().endswith(SUFFIXES):
        return False
    try:
        return read_regular(source, len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


def top_names(source: str) -> set[str] | None:
    """Return the names at the top of an HDF5 file; None where they cannot be read, or h5py is not installed."""
    try:
        return set(survey(source))
    except (FormatError, MissingDependencyError):
        return None


class Hdf5Files:
    """HDF5 files of which the one used last is open."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._held: tuple[int, int, Any] | None = None
        self._datasets: dict[str, Any] | None = None
        self._surveyed: set[int] = set()

    def open(self, number: int) -> Any:
        """Return a file as `h5py.File`, open for reading until another one is asked for."""
        if self._held is not None and self._held[:2] == (os.getpid(), number):
            return self._held[2]
        try:
            import h5py
        except ImportError as error:
            raise MissingDependencyError.of("h5py", "hdf5") from error
        self.close()
        path = self.paths[number]
        if number not in self._surveyed:
            if not Path(path).is_file():
                raise FormatError(f"{path} is not there.")
            survey(path)
            self._surveyed.add(number)
        with self.naming(number, "the file"):
            self._held = os.getpid(), number, h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE_BYTES)
        assert self._held is not None
        return self._held[2]

    def datasets(self, number: int) -> dict[str, Any]:
        """Return all datasets of a file by their dotted names, held as long as the file, with their chunks."""
        file = self.open(number)
        if self._datasets is None:
            self._datasets = datasets_of(file)
        return self._datasets

    def close(self) -> None:
        """Close what is open."""
        held, self._held, self._datasets = self._held, None, None
        if held is not None and held[0] == os.getpid():
            held[2].close()

    @contextmanager
    def naming(self, number: int, where: str) -> Iterator[None]:
        """Make errors of h5py name the file and what was read."""
        try:
            yield
        except StepwellError:
            raise
        except FileNotFoundError as error:
            raise FormatError(f"{self.paths[number]} is not there.") from error
        except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError) as error:
            raise FormatError(
                f"{self.paths[number]}, {where}: {error}. It is damaged, or not the HDF5 file that it should be."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_datasets": None}


def datasets_of(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return the datasets below a group by their dotted names, in the order of the names."""
    import h5py

    found: list[tuple[str, Any]] = []
    pending = [(prefix, group, 0)]
    while pending:
        name, node, depth = pending.pop(0)
        if isinstance(node, h5py.Dataset):
            found.append((name, node))
        elif depth > MAX_DEPTH:
            raise FormatError(f"{group.file.filename}: groups below {name!r} lie {depth} deep. Allowed: {MAX_DEPTH}.")
        else:
            pending += [(f"{name}.{key}" if name else key, node[key], depth + 1) for key in sorted(node)]
    check_told_apart([name for name, _ in found], group.file.filename)
    return dict(sorted(found, key=itemgetter(0)))


def feature_of(dataset: Any) -> Feature:
    """Return the feature that holds a row of a dataset."""
    import h5py

    dtype = dataset.dtype
    if not dataset.shape:
        raise FormatError(f"{_where(dataset)} is one value, not a row a step.")
    if h5py.check_string_dtype(dtype) is not None:
        return Text()
    if h5py.check_vlen_dtype(dtype) == np.uint8:
        return Bytes()
    if dtype.kind not in "biufc":
        raise FormatError(f"{_where(dataset)} has elements of {dtype}. Allowed: numbers, bool, text and bytes.")
    shape = tuple(int(size) for size in dataset.shape[1:])
    is_image = dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and 0 not in shape
    plain = np.dtype(dtype.str).newbyteorder("=")
    return Image(shape) if is_image else Array(shape, plain)


def read_rows(dataset: Any, feature: Feature, start: int, stop: int) -> npt.NDArray[Any] | list[Any]:
    """Return rows of a dataset as a feature's values."""
    if len(dataset.shape) == 0 or dataset.shape[0] < stop:
        raise FormatError(f"{_where(dataset)} has {dataset.shape} where {stop} rows are needed.")
    if feature.kind in ("text", "bytes"):
        values = read_varying(dataset.file.filename, dataset.name, start, stop)
        return values if feature.kind == "bytes" else [_decoded(value, dataset) for value in values]
    if dataset.dtype.newbyteorder("=") != feature.np_dtype or dataset.shape[1:] != feature.fixed_shape:
        raise FormatError(
            f"{_where(dataset)} has rows of {dataset.dtype} {dataset.shape[1:]}, the first episode {feature}."
        )
    return np.asarray(plain_rows(dataset, start, stop), feature.np_dtype)


def plain_rows(dataset: Any, start: int, stop: int) -> npt.NDArray[Any]:
    """Return rows of numbers as they are, unless they would take far more memory than is stored of them."""
    _check_stored(dataset, (stop - start) * math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
    rows: npt.NDArray[Any] = dataset[start:stop]
    return rows


def can_stay(dataset: Any, feature: Feature, path: str) -> bool:
    """Return whether a dataset's rows can be left in a file: plain, whole, and large enough to be worth it."""
    return bool(
        feature.is_raw
        and feature.row_bytes >= MIN_SPAN_BYTES
        and dataset.dtype == feature.np_dtype
        and dataset.shape[1:] == feature.fixed_shape
        and lies_plain(dataset, path)
    )


def lies_plain(dataset: Any, path: str) -> bool:
    """Return whether the bytes of each row lie in one piece of a file: of contiguous datasets and of whole chunks."""
    if dataset.file.filename != path or dataset.external or dataset.is_virtual or dataset.file.userblock_size:
        return False
    if dataset.chunks is None:
        return dataset.id.get_offset() is not None
    # HDF5 before 1.12.3 does not list chunks
    is_listed = hasattr(dataset.id, "chunk_iter") and dataset.chunks[1:] == dataset.shape[1:]
    is_plain = is_listed and dataset.id.get_create_plist().get_nfilters() == 0
    # a chunk that was never written is not in the file
    return bool(is_plain and dataset.id.get_num_chunks() == -(-dataset.shape[0] // dataset.chunks[0]))


def row_offsets(dataset: Any) -> npt.NDArray[np.int64]:
    """Return where each row of a dataset that `lies_plain` begins in the file, int64 [rows]."""
    row_bytes = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    rows = np.arange(dataset.shape[0], dtype=np.int64)
    if dataset.chunks is None:
        rows *= row_bytes
        rows += int(dataset.id.get_offset())
        return rows
    length = dataset.chunks[0]
    places = np.full(-(-len(rows) // length), -1, np.int64)

    def note(chunk: Any) -> None:
        places[chunk.chunk_offset[0] // length] = chunk.byte_offset if chunk.size == length * row_bytes else -1

    dataset.id.chunk_iter(note)
    if (places < 0).any():
        raise FormatError(f"{_where(dataset)} has chunks of another size than its shape says: it is damaged.")
    offsets: npt.NDArray[np.int64] = places[rows // length] + rows % length * row_bytes
    return offsets


def rows_in_file(
    parts: Sequence[tuple[Any, int, int]], feature: Feature, paths: Sequence[str], number: int
) -> FileSpans:
    """Return rows of datasets for which `can_stay` holds, as spans of their file."""
    joined = np.concatenate([row_offsets(dataset)[start:stop] for dataset, start, stop in parts])
    sizes = np.full(len(joined), feature.row_bytes, np.int64)
    return spans_of(joined, sizes, feature, paths, number, where=_where(parts[0][0]))


def spans_of(
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    feature: Feature,
    paths: Sequence[str],
    number: int,
    *,
    where: str,
) -> FileSpans:
    """Return rows at these places of a file; FormatError where it ends before one does."""
    size = Path(paths[number]).stat().st_size
    if len(offsets) and int((offsets + sizes).max()) > size:
        raise FormatError(f"{where} lies beyond the end of its file, {size} bytes: it is cut off.")
    return FileSpans(feature, paths, number, offsets, sizes)


def _check_stored(dataset: Any, num_bytes: int) -> None:
    """Refuse a dataset whose shape claims more than its stored bytes can be: memory follows the claim."""
    stored = int(dataset.id.get_storage_size())
    if dataset.nbytes > MAX_RATIO * max(stored, MIN_STORED):
        raise FormatError(f"{_where(dataset)} claims {dataset.nbytes} bytes, of which {stored} are stored: damaged.")
    chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
    # a chunk is unpacked whole
    if is_too_large(max(num_bytes, chunk), stored):
        raise FormatError(
            f"{_where(dataset)}: to read rows of it takes {max(num_bytes, chunk):,} bytes, of which {stored:,} are "
            f"stored. {WHAT_TO_SET}"
        )


def holds_files(dataset: Any) -> bool:
    """Return whether the rows of a dataset are image files, padded with zeros or of varying length."""
    import h5py

    is_row = dataset.dtype == np.uint8 and len(dataset.shape) == 2
    is_value = len(dataset.shape) == 1 and (dataset.dtype.kind == "S" or _varies(h5py, dataset.dtype))
    if not (is_row or is_value) or not dataset.shape[0]:
        return False
    return image_format(file_rows(dataset, 0, 1)[0][:16]) is not None


def _varies(h5py: Any, dtype: np.dtype[Any]) -> bool:
    text = h5py.check_string_dtype(dtype)
    return bool((text is not None and text.encoding == "ascii") or h5py.check_vlen_dtype(dtype) == np.uint8)


def file_rows(dataset: Any, start: int, stop: int) -> list[bytes]:
    """Return rows that are image files, without the zeros after them: none that is whole ends with one."""
    if len(dataset.shape) == 1:
        return [value.rstrip(b"\0") for value in read_varying(dataset.file.filename, dataset.name, start, stop)]
    rows = read_rows(dataset, Array(dataset.shape[1:], "uint8"), start, stop)
    return [np.asarray(row).tobytes().rstrip(b"\0") for row in rows]


def value_of(dataset: Any) -> Any:
    """Return what JSON holds of one value, or of a few numbers; else what it is."""
    # of an empty one there is no size
    if dataset.size is None or dataset.size > MAX_TOLD:
        return f"{dataset.dtype} {dataset.shape}"
    if not dataset.shape and dataset.dtype.kind in "OS":
        return read_varying(dataset.file.filename, dataset.name, None, None)[0].decode("utf-8", "replace")
    if dataset.dtype.kind not in "biuf":
        return f"{dataset.dtype} {dataset.shape}"
    return dataset[()].tolist()


def _decoded(value: bytes, dataset: Any) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{_where(dataset)} holds text that is no UTF-8: {error}.") from error


def _where(dataset: Any) -> str:
    return f"{dataset.file.filename}, {dataset.name}"
