"""``stepwell bench``, ``env`` and ``warm``: how fast windows of a store come, the machine, kernels compiled ahead."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.cli.inspecting import name_of, open_given
from stepwell.cli.terminal import print_folded
from stepwell.errors import install_command
from stepwell.loader import Loader
from stepwell.process import available_cpus
from stepwell.progress import make_bar
from stepwell.store import Store
from stepwell.windows import Field, View

__all__ = [
    "StreamReport",
    "advice",
    "batch_bytes",
    "default_offsets",
    "describe_environment",
    "measure_memcpy",
    "run_bench",
    "run_env",
    "run_warm",
    "stream",
]

MEMCPY_BYTES = 64 << 20
MEMCPY_REPEATS = 7


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What a stream of batches took; the first batch, which may compile kernels and fill pools, is kept apart.

    Args:
        num_windows: samples after the first batch.
        num_bytes: of those samples, decoded.
        seconds: wall time for them.
        first_batch_seconds: wall time until the first batch was there.
        memcpy_gb_per_s: what copying 64 MiB reached in the same run.
    """

    num_windows: int
    num_bytes: int
    seconds: float
    first_batch_seconds: float
    memcpy_gb_per_s: float

    @property
    def windows_per_second(self) -> float:
        """Samples a second."""
        return self.num_windows / self.seconds if self.seconds else 0.0

    @property
    def gb_per_s(self) -> float:
        """Decoded gigabytes a second."""
        return self.num_bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def memcpy_ratio(self) -> float:
        """Share of memcpy's speed."""
        return self.gb_per_s / self.memcpy_gb_per_s

    def to_json(self) -> dict[str, float]:
        """Return the report as JSON types."""
        return {
            "windows": self.num_windows,
            "bytes": self.num_bytes,
            "seconds": self.seconds,
            "first_batch_seconds": self.first_batch_seconds,
            "windows_per_second": self.windows_per_second,
            "gb_per_s": self.gb_per_s,
            "memcpy_gb_per_s": self.memcpy_gb_per_s,
            "memcpy_ratio": self.memcpy_ratio,
        }

    def __str__(self) -> str:
        return (
            f"{self.windows_per_second:,.0f} windows/s   {self.gb_per_s:.2f} GB/s   "
            f"{self.memcpy_ratio:.2f} of memcpy ({self.memcpy_gb_per_s:.1f} GB/s)"
        )


def stream(loader: Iterable[Mapping[str, Any]], bar: Any, *, max_seconds: float = float("inf")) -> StreamReport:
    """Take batches until the loader ends or the time is up.

    Args:
        loader: gives batches of arrays, samples along the first axis.
        bar: a progress bar, moved by samples.
        max_seconds: stop after the first batch that ends later than this.
    """
    memcpy = measure_memcpy()
    num_windows = num_bytes = 0
    begun = time.perf_counter()
    started = ended = begun
    for number, batch in enumerate(loader):
        ended = time.perf_counter()
        samples = len(next(iter(batch.values())))
        bar.update(samples)
        if number == 0:
            started = ended
            continue
        num_windows += samples
        num_bytes += batch_bytes(batch)
        if ended - started > max_seconds:
            break
    return StreamReport(num_windows, num_bytes, ended - started, started - begun, memcpy)


def batch_bytes(batch: Mapping[str, Any]) -> int:
    """Return the bytes of a batch's arrays; rows of varying size are counted one by one."""
    return sum(_value_bytes(value) for value in batch.values())


def measure_memcpy() -> float:
    """Return how many GB a second one thread copies between two warm arrays of 64 MiB: the median of seven copies."""
    source, target = np.ones(MEMCPY_BYTES, np.uint8), np.zeros(MEMCPY_BYTES, np.uint8)
    times = []
    for _ in range(MEMCPY_REPEATS):
        begun = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begun)
    return MEMCPY_BYTES / float(np.median(times)) / 1e9


def _value_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return sum(_value_bytes(item) for item in value.ravel())
    if isinstance(value, str | bytes):
        return len(value)
    return int(getattr(value, "nbytes", 0))


IMAGE_OFFSETS = (-1, 0)
OTHER_OFFSETS = tuple(range(16))


def run_bench(arguments: argparse.Namespace) -> int:
    """Stream a store's windows for some seconds and print the speed."""
    with open_given(arguments) as store:
        offsets = default_offsets(store)
        if arguments.field:
            # a field that is given without offsets takes the default ones; unknown names are refused by the loader
            offsets = {name: given or offsets.get(name, (0,)) for name, given in arguments.field}
        loader = Loader(
            View(store),
            {name: Field(name, list(window)) for name, window in offsets.items()},
            batch_size=arguments.batch_size,
            order=arguments.order,
            threads=arguments.threads,
            page_cache=not arguments.no_page_cache,
            epochs=None,
        )
        with make_bar(None, "windows", name_of(arguments.path)) as bar:
            report = stream(loader, bar, max_seconds=arguments.seconds)
        hints = advice(store, offsets, arguments.order, arguments.threads, report)
    if arguments.json:
        record = {"path": str(arguments.path), "batch_size": arguments.batch_size, "order": arguments.order}
        record["advice"] = hints
        record["page_cache"] = not arguments.no_page_cache
        print(
            json.dumps(
                {**record, "fields": {name: list(window) for name, window in offsets.items()}, **report.to_json()}
            )
        )
        return 0
    for name, window in offsets.items():
        print_folded(f"  {name:<{max(map(len, offsets))}}  {_offsets_text(window)}")
    print_folded(report)
    for hint in hints:
        print_folded(f"  {hint}")
    return 0


# windows of fewer bytes cost calls, and above this share of memcpy a loader has nothing left to gain
SMALL_WINDOW, NEAR_MEMCPY = 4096, 0.5


def advice(
    store: Store, offsets: Mapping[str, Sequence[int]], order: str, threads: int | None, report: StreamReport
) -> list[str]:
    """Return what may make these windows come faster, a line each; docs/performance.md explains them."""
    features = (store.schema or {}).items()
    encoded = {name: feature.codec for name, feature in features if name in offsets and not feature.is_raw}
    scattered = encoded if order == "random" else {}
    lines = []
    for name, codec in scattered.items():
        steps = len(set(offsets[name]))
        if codec in ("video", "delta"):
            lines.append(f"{name} is {codec}: a window decodes from the keyframe before it. Try --order pooled")
        elif steps > 1:
            lines.append(f"{name} is {codec}: each step is decoded {steps} times an epoch. Try --order pooled: once")
    if encoded and threads == 0:
        lines.append(f"{', '.join(encoded)}: decoded by the thread that takes the batches. Try --threads 2, or more")
    if report.memcpy_ratio > NEAR_MEMCPY:
        lines.append(
            "windows come about as fast as memory is copied: only fewer bytes are faster, such as smaller images"
        )
    elif not encoded and report.num_bytes < SMALL_WINDOW * report.num_windows:
        lines.append("windows are small, and their number is the cost, not their bytes. Try a larger --batch-size")
    return lines


def default_offsets(store: Store) -> dict[str, tuple[int, ...]]:
    """Return the windows that are streamed when none are given: two steps of each image, sixteen of all else."""
    features = (store.schema or {}).items()
    return {name: IMAGE_OFFSETS if feature.kind == "image" else OTHER_OFFSETS for name, feature in features}


def _offsets_text(offsets: tuple[int, ...]) -> str:
    """Return offsets as `--field` takes them: ``-1,0`` or ``0:16``."""
    is_run = len(offsets) > 2 and offsets == tuple(range(offsets[0], offsets[-1] + 1))
    return f"{offsets[0]}:{offsets[-1] + 1}" if is_run else ",".join(map(str, offsets))


# extra -> the packages that it brings
PACKAGES = {
    "core": ("stepwell", "numpy", "numba", "llvmlite"),
    "image": ("simplejpeg", "imagecodecs"),
    "zstd": ("zstandard",),
    "lz4": ("lz4",),
    "video": ("av",),
    "lerobot": ("pyarrow", "huggingface-hub"),
    "remote": ("fsspec",),
    "webdataset": ("webdataset",),
    "tfds": ("array-record",),
    "hdf5": ("h5py",),
    "arrow": ("pyarrow",),
    "zarr": ("zarr",),
    "torch": ("torch",),
    "gymnasium": ("gymnasium",),
    "cli": ("tqdm", "pillow", "argcomplete"),
    "demo": ("gym-pusht",),
}


def run_env(arguments: argparse.Namespace) -> int:
    """Print versions, cores, memory and extras."""
    record = describe_environment()
    if arguments.json:
        print(json.dumps(record, indent=2))
        return 0
    print_folded(f"python     {record['python']} on {record['platform']}")
    print_folded(f"cores      {record['num_cores']} usable")
    print_folded(
        f"memory     {_gigabytes(record['available_bytes'])} available of {_gigabytes(record['memory_bytes'])}"
    )
    for extra, packages in record["packages"].items():
        found = "  ".join(f"{name} {found or 'not installed'}" for name, found in packages.items())
        hint = "" if all(packages.values()) else f"    {install_command(extra)}"
        print_folded(f"{extra:<11}{found}{hint}")
    return 0


def describe_environment() -> dict[str, Any]:
    """Return the facts that `run_env` prints, as JSON types; a package that is not installed has version None."""
    memory = _memory_bytes()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": available_cpus(),
        "memory_bytes": memory.get("MemTotal"),
        "available_bytes": memory.get("MemAvailable"),
        "packages": {extra: {name: _version(name) for name in names} for extra, names in PACKAGES.items()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory_bytes() -> dict[str, int]:
    """Return the sizes of /proc/meminfo, in bytes; nothing where there is no such file."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    except OSError:
        return {}


def _gigabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.1f} GB"


def run_warm(arguments: argparse.Namespace) -> int:
    """Compile what is not compiled yet, and say how much that was."""
    from stepwell.kernels import signatures

    begun, num_compiled = time.perf_counter(), 0
    total = sum(map(len, signatures.known_signatures().values()))
    with make_bar(total, "kernels", "compiling") as bar:
        for _, is_compiled in signatures.compile_all():
            num_compiled += is_compiled
            bar.update(1)
    print_folded(f"{total} kernels, of which {num_compiled} were compiled, in {time.perf_counter() - begun:.1f} s")
    return 0
