"""Datasets on other machines: of fsspec's memory, which has lists, and of a web server, which has none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from web_server import WebServer

from stepwell.files.addresses import cache_directory
from stepwell.references import remote_files, remote_sources

GRACE = 0.02


def in_memory(root: Path, bucket: str) -> str:
    """Copy a directory into fsspec's memory; return its address."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for path in root.rglob("*"):
        if path.is_file():
            system.pipe(f"/{bucket}/{path.relative_to(root)}", path.read_bytes())
    return f"memory://{bucket}"


@contextmanager
def own_cache(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Fetch into a cache of a test's own, and wait for little: a file is given up `GRACE` seconds after it was used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_CACHE", str(folder))
        patch.setattr(remote_files, "_STATES", {})
        patch.setattr(remote_files, "GRACE_SECONDS", GRACE)
        patch.setattr(remote_sources, "WAITS_SECONDS", (0.0, 0.0, 0.0))
        yield patch


def kept() -> list[str]:
    """Return the names of the shards that are in the cache."""
    names = [path.name.split("-", 2)[-1] for path in (cache_directory() / "remote").glob("[!.]*")]
    return sorted(name for name in names if "-of-" in name)


def fetched(web: WebServer) -> list[str]:
    """Return the names of the shards that a server sent, in order."""
    return [name.rpartition("/")[2] for name in web.fetched if "-of-" in name]
