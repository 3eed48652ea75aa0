import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plot_transforms.py"


def test_the_sheet_shows_every_transform_of_images(tmp_path):
    pytest.importorskip("matplotlib")
    output = tmp_path / "sheet.png"
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import pathlib, inspect, plot_transforms as plot\n"
        f"plot.draw(pathlib.Path({str(output)!r}))\n"
        "from stepwell import transforms\n"
        "from stepwell.transforms.images import ImageTransform\n"
        "shown = {type(transform) for _, transform in plot.TRANSFORMS}\n"
        "named = [getattr(transforms, name) for name in transforms.__all__]\n"
        "classes = {each for each in named if inspect.isclass(each) and issubclass(each, ImageTransform)}\n"
        "sys.exit(str(classes - shown) if classes - shown else 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert output.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
