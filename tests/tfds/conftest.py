"""The sets that the real TFDS wrote, beside the checkout; what tests share is imported by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parents[3] / "shared" / "data"


def shared(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"TFDS's sample files (../shared/data/{name}) are not beside this checkout")
    return DATA / name


@pytest.fixture(scope="session")
def rlds_sets() -> Path:
    return shared("rlds")


@pytest.fixture(scope="session")
def image_sets() -> Path:
    return shared("tfds_images")
