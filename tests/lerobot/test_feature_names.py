"""Names that LeRobot allows and a store does not are told with the way out, wherever a store is made."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

import stepwell
from stepwell import convert
from stepwell.errors import FormatError
from stepwell.lerobot import write_dataset

from .written import H264, make_store

NAMES = [("action", "left arm"), ("action", "episodes"), ("camera.video", "größe"), ("camera.video", "Next.Reward")]


def in_place(root, _, **options):
    return stepwell.open(f"lerobot://{root}", **options)


def imported(root, target, **options):
    convert(root, target, workers=0, **options)
    return stepwell.open(target)


def as_items(root, _, **options):
    pytest.importorskip("torch")
    return stepwell.lerobot.LeRobotDataset("me/set", root=root, **options)


@pytest.mark.parametrize("read", [in_place, imported, as_items])
@pytest.mark.parametrize(("feature", "name"), NAMES)
def test_it_is_named_and_can_be_left_out(tmp_path, monkeypatch, read, name, feature):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    store = make_store(tmp_path / "a.well", (3,), names=["next.reward", "action", "camera.video"])
    root = tmp_path / "set"
    write_dataset(store, root, rename={feature: name}, video=H264)
    with pytest.raises(FormatError, match=rf"info\.json: feature.*'{name}'.*ignore=\['{name}'\]"):
        read(root, tmp_path / "b.well")
    assert not (tmp_path / "b.well").exists()
    found = read(root, tmp_path / "b.well", ignore=[name])
    names = found[0].keys() if read is as_items else found.schema
    assert name not in names and "next.reward" in names
