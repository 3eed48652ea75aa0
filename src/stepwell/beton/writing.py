"""Writing ``.beton`` files, which FFCV's loader and stepwell read.

::

    store, view ──> windows ──> WindowLots     rows that samples share are stored once a piece
    dataset[i] ──> fields ──> IndexedSamples   each sample by itself
                                     └──────> lay: N processes encode, one places ──> one file, the same for every N
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from stepwell.beton.encoding import (
    ArrayEncoder,
    BytesEncoder,
    Encoder,
    FloatEncoder,
    ImageEncoder,
    IntEncoder,
    WriteMode,
    check_names,
)
from stepwell.beton.laying import Target, check_alignment, check_page_size
from stepwell.beton.sample_lots import check_not_empty, write_indexed
from stepwell.beton.window_fields import plan_windows
from stepwell.beton.window_lots import JPEG_CODECS, WindowLots
from stepwell.errors import SchemaError
from stepwell.files.addresses import local_path
from stepwell.formats.source_episodes import as_view
from stepwell.recorders.chunks import Executor
from stepwell.schema import Feature
from stepwell.store import Store
from stepwell.windows import View
from stepwell.windows.fields import resolve_fields, schema_of

__all__ = ["write_beton"]


def write_beton(
    source: Any,
    path: str | os.PathLike[str],
    *,
    windows: Mapping[str, Any] | None = None,
    fields: Mapping[str, Feature | Encoder] | None = None,
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    masks: bool = False,
    write_mode: WriteMode | None = None,
    max_resolution: int | None = None,
    smart_threshold: int | None = None,
    quality: int = 90,
    compress_probability: float = 0.5,
    page_size: int | str = 8 << 20,
    align: int = 8,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> None:
    """Write a ``.beton`` file.

    Of a store every anchor becomes a sample, in the order of the anchors: with ``windows`` its windows, else the values
    of its step. What windows share is stored once: of a window of 16 steps the file is about as large as the episodes,
    not 16 times as large, and FFCV's loader, which knows nothing of it, reads each window right, in every order and
    cache mode.

    Args:
        source: a store, some of its episodes (`stepwell.View`), or what `stepwell.open` takes: a path, or an address
            such as ``"webdataset://shards-{000..009}.tar"``; with ``fields``, a dataset that has ``len()`` and
            ``dataset[i]``.
        path: of the file; it appears whole, or not at all.
        windows: key to `stepwell.Field`, name of a feature, or offsets, as for a `stepwell.Loader`. Plain arrays and
            raw images become one array with a time axis; JPEG files, texts and bytes a field for each offset: KEY_0,
            KEY_1, ... Without transforms.
        fields: of a dataset: name to feature (``Image((None, None, 3))``, ``Array(7)``, ``Array((), "int64")``,
            ``Bytes()``, ``Text()``), in the order of a sample's values.
        features: of a store without ``windows``: names to write; default all.
        rename: keys to names in the file: at most 16 ASCII characters. FFCV would cut longer ones.
        masks: also write ``KEY_is_pad``, which of a window's steps lie outside of the episode.
        write_mode: of RGB images: "raw" (pixels); "jpg"; "smart" (JPEG above ``smart_threshold`` bytes of pixels);
            "proportion" (JPEG of a part of them). Default: JPEG files as they are, and what lies in one column with
            them as JPEG; others raw.
        max_resolution: the longest side; larger images become smaller.
        smart_threshold: see ``write_mode``.
        quality: of JPEG files that are made, 1 to 100.
        compress_probability: of JPEG, with "proportion".
        page_size: in bytes, or as text; a power of two. No sample is larger.
        align: regions, or runs of rows, begin at multiples of it.
        workers: processes; default one a processor, 0 or 1 writes in this one. The file is the same for every number.
        executor: where that is done instead of in ``workers`` processes; see `stepwell.ray.RayExecutor`.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.

    Raises:
        SchemaError: a feature, field or name that a file cannot hold; the message says what to do.
        WindowError: windows that do not fit the store.
        StepError: there are no samples.
        FormatError: a sample that is larger than a page, or a page size that is not allowed.
        WorkerError: a sample that could not be read or written (the message names it), or a worker that was killed.
        StoreExistsError: something is at the path already.
        DiskFullError: no space; nothing is left.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/tiny.well")
        >>> write_beton(store, f"{folder}/tiny.beton", windows={"action": range(4)}, workers=1)

    Notes:
        Memory: a worker holds the encoded rows of three lots, some 16 MiB each, and a page. In a script, more than one
        worker needs an ``if __name__ == "__main__":`` guard. A writer that is killed leaves nothing at the path.
    """
    local_path(path)
    size = check_page_size(page_size)
    target = Target(path, size, check_alignment(align, size), executor or workers, progress)

    def image_encoder(feature: Feature) -> ImageEncoder:
        is_jpeg = feature.codec in JPEG_CODECS or feature.option("format", "") in JPEG_CODECS
        mode = write_mode or ("jpg" if is_jpeg else "raw")
        return ImageEncoder(mode, max_resolution, smart_threshold, quality, compress_probability)

    if fields is not None:
        if windows is not None or features is not None or isinstance(source, Store | View):
            raise SchemaError("fields= describes a dataset. Of a store give windows=, or features=.")
        names = rename or {}
        encoders = {names.get(name, name): _encoder(name, each, image_encoder) for name, each in fields.items()}
        check_names([names.get(name, name) for name in fields], "rename={name: shorter name}")
        write_indexed(target, source, encoders)
        return
    view = as_view(_as_one(source))
    chosen = _windows(view, windows, features)
    plan = plan_windows(resolve_fields(chosen, view.stores), rename or {}, image_encoder, masks=masks)
    lots = WindowLots(view, chosen, plan, target.align)
    check_not_empty(lots.index.num_anchors)
    target.lay(lots, lots.lots(), plan.encoders)


def _as_one(source: Any) -> Any:
    if isinstance(source, Store | View | str | os.PathLike):
        return source
    if isinstance(source, Sequence) and source and all(isinstance(each, Store) for each in source):
        return View(source)
    raise SchemaError(
        f"the source is a {type(source).__name__}. Give a store, a view, a path or an address; of a dataset, also "
        "fields={name: feature}."
    )


def _windows(view: View, windows: Mapping[str, Any] | None, features: Collection[str] | None) -> dict[str, Any]:
    if windows is not None:
        if features is not None:
            raise SchemaError("features= and windows= were both given. The keys of windows= say what is written.")
        return dict(windows)
    schema = schema_of(view.stores[0])
    unknown = [name for name in features or () if name not in schema]
    if unknown:
        raise SchemaError(f"no feature {unknown[0]!r}. There are: {', '.join(schema)}.")
    return {name: name for name in schema if features is None or name in features}


def _encoder(name: str, given: Any, image_encoder: Callable[[Feature], ImageEncoder]) -> Encoder:
    """Return how values of a feature are written, one by one."""
    if isinstance(given, Encoder):
        return given
    if not isinstance(given, Feature):
        raise SchemaError(f"field {name!r} is a {type(given).__name__}. Give a feature: Array(7), Image(...), Bytes().")
    if given.is_rgb_image:
        return image_encoder(given)
    if given.kind in ("text", "bytes"):
        return BytesEncoder()
    if given.is_ragged:
        raise SchemaError(f"field {name!r}: {given} varies in size, and FFCV's arrays do not.")
    if given.shape == () and given.np_dtype.kind in "biu" and given.dtype != "<u8":
        return IntEncoder()
    if given.shape == () and given.np_dtype.kind == "f":
        return FloatEncoder()
    return ArrayEncoder(given.fixed_shape or (1,), given.np_dtype)
