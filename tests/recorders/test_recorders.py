import subprocess
import sys

import pytest

import stepwell.recorders
from stepwell.errors import install_command


def test_without_gymnasium_the_error_is_the_line_to_type():
    script = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from stepwell.recorders import write_episodes\n"
        "from stepwell.recorders import EpisodeRecorder\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240)
    told = f"MissingDependencyError: gymnasium is not installed. Type: {install_command('gymnasium')}"
    assert told in ended.stderr


def test_every_public_name_is_there():
    assert all(hasattr(stepwell.recorders, name) for name in stepwell.recorders.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = stepwell.recorders.Nothing
