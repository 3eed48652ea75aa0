"""``stepwell env``: what a bug report needs to say about a machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["describe_environment", "run_env"]

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
    "cli": ("tqdm", "pillow"),
    "demo": ("gym-pusht",),
}


def run_env(arguments: argparse.Namespace) -> int:
    """Print versions, cores, memory and extras."""
    record = describe_environment()
    if arguments.json:
        print(json.dumps(record, indent=2))
        return 0
    print(f"python     {record['python']} on {record['platform']}")
    print(f"cores      {record['num_cores']} usable")
    print(f"memory     {_gigabytes(record['available_bytes'])} available of {_gigabytes(record['memory_bytes'])}")
    for extra, packages in record["packages"].items():
        found = "  ".join(f"{name} {found or 'not installed'}" for name, found in packages.items())
        hint = "" if all(packages.values()) else f'    pip install "stepwell[{extra}]"'
        print(f"{extra:<11}{found}{hint}")
    return 0


def describe_environment() -> dict[str, Any]:
    """Return the facts that `run_env` prints, as JSON types; a package that is not installed has version None."""
    memory = _memory_bytes()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
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
