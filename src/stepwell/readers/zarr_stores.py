"""The files of a zarr group, read with care: a chunk that is missing or cut off is an error.

zarr takes a missing chunk for one that holds the fill value, and its codec blosc reads beyond the end of one that was
cut off, and gives whatever lies there in memory.
"""

from __future__ import annotations

import functools
from typing import Any

from stepwell.errors import FormatError, MissingDependencyError

__all__ = ["MISSING", "checked_store", "watch_array"]

MISSING = ("error", "fill")
METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
# of blosc's header: its size, and where in it the size of the whole stands
HEADER_BYTES, SIZE = 16, slice(12, 16)


def checked_store(source: str, missing_chunks: str) -> Any:
    """Return a zarr store for reading whose chunks are looked at before they are decoded.

    Args:
        source: directory of the group, or a ``.zip`` of it.
        missing_chunks: "error", or "fill": a chunk that is not there holds the fill value.

    Raises:
        MissingDependencyError: zarr is not installed.
    """
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
    """Have the sizes of an array's chunks compared with what blosc's headers say, if it packs them.

    Args:
        array: zarr's, of a store that `checked_store` made.
    """
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
