"""A Ray of this machine for the tests of this folder, started once."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

# read when Ray is imported: without it, whatever address is asked for, Ray listens on all of the machine's
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# what Ray 2.50 has beside an older one
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
OBJECT_STORE_BYTES = 200 << 20


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Any]:
    """Ray on loopback, with four processors' worth of workers, whatever the machine has."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stepwell[ray]'")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    yield ray
    ray.shutdown()
