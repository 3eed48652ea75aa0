"""A .beton file in whose place something else was put."""

from pathlib import Path

import numpy as np
import pytest
from built_files import write_arrays

from stepwell.testing import check_strangers

# processes are forked beside threads that they do not need
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_evil_copies_do_nothing(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.beton", np.arange(30, dtype="f4").reshape(5, 6))
    assert sum(check_strangers(path, "beton").errors.values()) == 3
