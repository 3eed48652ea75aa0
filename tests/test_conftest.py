"""What every test runs under."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def test_no_test_writes_into_the_cache_of_who_runs_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert Path(os.environ["STEPWELL_CACHE"]).is_relative_to(tmp_path_factory.getbasetemp())
