"""The files of a tiny LeRobot dataset: parquet schemas, PNG and mp4 bytes, statistics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_encoding import ordinary_threads

__all__ = ["arrow_schema", "encode_png", "flat", "lists", "statistics", "write_lines", "write_tasks", "write_video"]

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
ENCODERS = {
    "h264": ("libx264", {"g": "2", "crf": "20", "bf": "0"}),
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "11", "svtav1-params": "lp=1:scd=0"}),
}


def arrow_schema(columns: Mapping[str, tuple[str, tuple[int, ...]]]) -> Any:
    """Return the schema of data parquet files, with the metadata from which ``datasets`` knows pictures.

    Args:
        columns: (dtype, shape) by name; dtypes are numpy's, "string" and "image".
    """
    import pyarrow as pa

    features = {name: _hf_feature(dtype, shape) for name, (dtype, shape) in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, _arrow_type(dtype, shape)) for name, (dtype, shape) in columns.items()], metadata)


def _arrow_type(dtype: str, shape: tuple[int, ...]) -> Any:
    import pyarrow as pa

    if dtype == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    element = {"bool": pa.bool_(), "string": pa.string()}.get(dtype) or pa.from_numpy_dtype(np.dtype(dtype))
    if shape == (1,):
        return element
    if len(shape) == 1:
        return pa.list_(element, shape[0])
    for _ in shape:
        element = pa.list_(element)
    return element


def _hf_feature(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    if dtype == "image":
        return {"_type": "Image"}
    if shape == (1,):
        return {"dtype": dtype, "_type": "Value"}
    if len(shape) == 1:
        # "List" is what datasets 4 writes and datasets 3 cannot parse; both parse this
        return {"feature": {"dtype": dtype, "_type": "Value"}, "length": shape[0], "_type": "Sequence"}
    return {"shape": list(shape), "dtype": dtype, "_type": f"Array{len(shape)}D"}


def encode_png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture, uint8 [H, W, 3], as the bytes of a PNG file."""
    import av

    context = av.CodecContext.create("png", "w")
    context.height, context.width, context.pix_fmt = *picture.shape[:2], "rgb24"
    context.time_base = Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(picture, "rgb24")
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def write_video(
    path: Path, parts: Iterable[Sequence[npt.NDArray[np.uint8]]], size: tuple[int, int], fps: float, encoder: str
) -> None:
    """Write pictures, part after part, to an mp4 file; a part begins with a key frame, and every second is one.

    Each part is encoded by itself and its packets are appended, as ``lerobot`` does with episodes.
    """
    import av

    codec, options = ENCODERS[encoder]
    rate, done = Fraction(fps).limit_denominator(1001), 0
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        # the header is written before the first packet, from the stream's own encoder
        with ordinary_threads():
            container.start_encoding()
        for pictures in parts:
            context = av.CodecContext.create(codec, "w")
            context.height, context.width, context.pix_fmt = *size, "yuv420p"
            context.time_base, context.framerate, context.options = 1 / rate, rate, options
            with ordinary_threads():
                context.open()
            for packet in _packets(context, pictures):
                packet.pts, packet.dts = packet.pts + done, packet.dts + done
                packet.time_base, packet.stream = 1 / rate, stream
                container.mux(packet)
            done += len(pictures)


def _packets(context: Any, pictures: Iterable[npt.NDArray[np.uint8]]) -> Iterator[Any]:
    import av

    for number, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(picture, "rgb24")
        frame.pts, frame.time_base = number, context.time_base
        yield from context.encode(frame)
    yield from context.encode(None)


def statistics(values: npt.NDArray[np.float64], count: int) -> dict[str, npt.NDArray[Any]]:
    """Return minimum, maximum, mean, deviation, count and quantiles over the first axis."""
    found: dict[str, npt.NDArray[Any]] = {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
        "count": np.array([count]),
    }
    return found | {name: np.quantile(values, at, axis=0) for name, at in QUANTILES.items()}


def lists(stats: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> dict[str, dict[str, Any]]:
    """Return statistics as JSON types."""
    return {name: {key: value.tolist() for key, value in found.items()} for name, found in stats.items()}


def flat(stats: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> dict[str, Any]:
    """Return statistics as columns of the table of episodes: ``stats/FEATURE/mean``."""
    return {f"stats/{name}/{key}": value for name, found in lists(stats).items() for key, value in found.items()}


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write the parquet file of tasks as pandas writes a table whose index is the text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [("task_index", "task_index", "int64", "int64"), (None, "__index_level_0__", "unicode", "object")]
    keys = ("name", "field_name", "pandas_type", "numpy_type")
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [dict(zip(keys, column, strict=True)) | {"metadata": None} for column in columns],
        "pandas_version": "2.3.3",
    }
    table = pa.table({"task_index": list(range(len(tasks))), "__index_level_0__": list(tasks)})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)
