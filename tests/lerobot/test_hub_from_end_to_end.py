"""HF_ENDPOINT leads the command and the library to another hub, of which no more than the chosen episodes come."""

import os
import sys

import numpy as np
import pytest
import warm_children

pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")
pytest.importorskip("imagecodecs")
pytest.importorskip("av")

import stepwell
from stepwell.testing.hub import HubServer
from stepwell.testing.lerobot import tiny_lerobot

CAMERAS = {"observation.images.top": ("png", (32, 48)), "observation.images.side": ("video", (16, 16))}
IN_PLACE = (
    "import stepwell; store = stepwell.open('lerobot://me/tiny?episodes=0:2')\n"
    "print(*[int(e['observation.images.side'].sum()) + int(e['observation.images.top'].sum()) for e in store])"
)
FILES = {
    # videos are cut elsewhere than rows: the second episode is in the second file
    "v3.0": [
        "data/chunk-000/file-000.parquet",
        *(f"videos/observation.images.side/chunk-000/file-00{number}.mp4" for number in (0, 1)),
    ],
    "v2.1": [
        *(f"data/chunk-000/episode_00000{number}.parquet" for number in (0, 1)),
        *(f"videos/chunk-000/observation.images.side/episode_00000{number}.mp4" for number in (0, 1)),
    ],
}


@pytest.fixture(params=list(FILES))
def version(request):
    return request.param


@pytest.fixture
def root(version, tmp_path):
    return tiny_lerobot(tmp_path / "set", version=version, lengths=[3] * 8, cameras=CAMERAS, files=4)


@pytest.fixture
def hub(root, version):
    with HubServer({"me/tiny": {"main": root, version: root}}) as server:
        yield server


@pytest.fixture
def run(hub, tmp_path):
    def run_python(*words):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        told = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "STEPWELL_CACHE": str(tmp_path / "cache")}
        return warm_children.run([sys.executable, *words], env=kept | told, capture_output=True, text=True, check=True)

    return run_python


def fetched(hub):
    return sorted(name for name in hub.files if not name.startswith("meta/"))


def test_convert_fetches_the_files_of_the_chosen_episodes_once(run, hub, root, version, tmp_path):
    target = tmp_path / "out.well"
    run("-m", "stepwell", "convert", "lerobot://me/tiny", str(target), "--episodes", "0:2", "--workers", "1")
    assert fetched(hub) == sorted(FILES[version])
    with stepwell.open(target, mode="r") as store, stepwell.open(f"lerobot://{root}?episodes=0:2") as wanted:
        assert [episode.metadata["lerobot_episode"] for episode in store] == [0, 1]
        for found, expected in zip(store, wanted, strict=True):
            for name in (*CAMERAS, "action", "timestamp", "index"):
                np.testing.assert_array_equal(found[name], expected[name])


def test_convert_of_everything_fetches_each_file_once(run, hub, root, tmp_path):
    run("-m", "stepwell", "convert", "lerobot://me/tiny", str(tmp_path / "out.well"), "--workers", "1")
    there = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix in (".parquet", ".mp4")]
    assert fetched(hub) == sorted(name for name in there if not name.startswith("meta/"))


def test_opening_in_place_fetches_the_files_of_the_chosen_episodes_once(run, hub, root, version):
    first = run("-c", IN_PLACE)
    assert fetched(hub) == sorted(FILES[version])
    with stepwell.open(f"lerobot://{root}?episodes=0:2") as wanted:
        sums = [sum(int(episode[name].sum()) for name in CAMERAS) for episode in wanted]
    assert first.stdout.split() == [str(number) for number in sums]
    hub.requests.clear()
    assert run("-c", IN_PLACE).stdout == first.stdout
    assert fetched(hub) == []
