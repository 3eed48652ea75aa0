"""The sample files that the real FFCV wrote, beside the checkout."""

import lzma
import shutil
import sys
from pathlib import Path

import pytest

# modules that tests share are imported by name, by workers too
sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parents[3] / "shared" / "data" / "beton"


@pytest.fixture(scope="session")
def ffcv_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with FFCV's files, unpacked, and what they hold."""
    if not DATA.is_dir():
        pytest.skip("FFCV's sample files (../shared/data/beton) are not beside this checkout")
    folder = tmp_path_factory.mktemp("ffcv")
    for path in DATA.iterdir():
        if path.suffix == ".xz":
            with lzma.open(path) as packed, (folder / path.stem).open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        else:
            shutil.copyfile(path, folder / path.name)
    return folder
