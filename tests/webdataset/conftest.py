"""What the tests of shards share is imported by name; the cache is each test's own."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parents[3] / "shared" / "data" / "webdataset"


@pytest.fixture
def real_shards() -> Path:
    if not DATA.is_dir():
        pytest.skip("the shards in ../shared/data/webdataset are not on this machine")
    return DATA


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
