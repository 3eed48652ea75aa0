"""LeRobot's own tests of datasets pass with stepwell's classes in place of theirs, but for those that are listed.

``LEROBOT_CHECKOUT=path/to/lerobot pytest tests/interop/test_lerobots_own_tests.py``, beside what these tests need.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell

CHECKOUT = os.environ.get("LEROBOT_CHECKOUT")
NEW = ["datasets", "dataset_reader", "lerobot_dataset", "delta_timestamps", "sampler", "streaming"]
OLD = ["datasets", "delta_timestamps", "sampler", "dataset_tools", "aggregate", "streaming"]
HERE = Path(__file__).parent

# an image out of range is refused by add_frame; there it is left out, with a line that is printed
RANGE = {"test_datasets.py::test_add_frame_image_wrong_range"}
# files of images that wait to be encoded: there are none
IMAGE_FILES = {
    "test_datasets.py::test_tmp_mixed_deletion",
    "test_datasets.py::test_cleanup_interrupted_episode_removes_image_temp_dirs",
}
# a function of the package datasets that is to be called, with an array
FROM_DICT = {
    f"test_datasets.py::test_save_episode_shape_1_scalar_is_scalarized_before_hf_encoding[{dtype}]"
    for dtype in ("float32", "int64", "bool")
}


def passed(tmp_path, names, *, swapped):
    """Return the tests of LeRobot's that pass."""
    found, root = tmp_path / f"passed-{swapped}.json", Path(CHECKOUT).absolute()
    files = [f"tests/datasets/test_{name}.py" for name in names]
    paths = [HERE, Path(stepwell.__file__).parents[1], root / "src", root]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "STEPWELL_CACHE": str(tmp_path / "cache"),
        "STEPWELL_PASSED": str(found),
        "STEPWELL_SWAP": "1" if swapped else "0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "lerobot_swap", *files]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return {name.removeprefix("tests/datasets/") for name in json.loads(found.read_text())}


@pytest.mark.skipif(CHECKOUT is None, reason="LEROBOT_CHECKOUT names no checkout of lerobot")
def test_they_pass_but_for_those_that_are_listed(tmp_path):
    is_new = (Path(CHECKOUT) / "tests/datasets/test_dataset_reader.py").exists()
    names, expected = (NEW, NEW_FAILURES) if is_new else (OLD, OLD_FAILURES)
    there, here = passed(tmp_path, names, swapped=False), passed(tmp_path, names, swapped=True)
    print(f"{len(there & here)} of {len(there)}")
    assert there - here == expected
