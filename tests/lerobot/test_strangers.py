"""LeRobot datasets that were made to do harm: templates and numbers in info.json, tables, videos, links."""

import os
from pathlib import Path
from typing import Any

import pytest

from stepwell.testing import check_strangers, tiny_lerobot

pytest.importorskip("av")
pytest.importorskip("pyarrow")
# processes are forked beside threads that they do not need
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
COUNT = int(os.environ.get("STEPWELL_STRANGERS", "20"))


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_evil_copies_do_nothing(tmp_path: Path, version: Any) -> None:
    root = tiny_lerobot(tmp_path / "set", version=version, lengths=[4, 3])
    assert check_strangers(root, "lerobot", count=COUNT, seed=5).errors
