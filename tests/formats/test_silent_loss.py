"""What is damaged in a data set of any format is an error, a warning, or the data: never fewer steps, or other names.

``STEPWELL_DAMAGE_COPIES`` says how many damaged copies of each are read; a thorough run takes some thousands.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Image, Text
from stepwell.beton import write_beton
from stepwell.formats import open_reader
from stepwell.testing import check_damage
from stepwell.tfds import write_rlds, write_tfds
from stepwell.webdataset import write_webdataset

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

COPIES = int(os.environ.get("STEPWELL_DAMAGE_COPIES", "15"))
KINDS = ("page", "cut", "cut page", "joined", "names", "zeros", "missing")
# zarr says of files that are no part of a group that they are none
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stepwell.Store]:
    path = tmp_path_factory.mktemp("silent") / "a.well"
    schema = {"image": Image((24, 32, 3), codec="jpeg"), "action": Array(2), "note": Text()}
    with stepwell.create(path, schema) as made:
        with made.writer() as writer:
            for episode in range(4):
                steps = range(3 + episode)
                images = np.stack([np.full((24, 32, 3), 40 * episode + step, np.uint8) for step in steps])
                rows = {"image": images, "action": np.ones((len(steps), 2), "f4"), "note": ["go"] * len(steps)}
                writer.add_episode(rows, task=f"task {episode}", truncated=True)
        made.refresh()
        yield made


def webdataset(store: stepwell.Store, root: Path) -> str:
    names = {"image": "jpg", "action": "vec.npy", "note": "txt"}
    write_webdataset(store, root / "set", rename=names, shard_samples=9, workers=1)
    return str(root / "set")


def webdataset_episodes(store: stepwell.Store, root: Path) -> str:
    write_webdataset(store, root / "set", samples="episodes", shard_samples=2, workers=1)
    return str(root / "set")


def rlds(store: stepwell.Store, root: Path) -> str:
    return str(write_rlds(store, root / "set", name="arm", workers=1))


def tfds(store: stepwell.Store, root: Path) -> str:
    return str(write_tfds(store, root / "set", name="arm", workers=1))


def beton(store: stepwell.Store, root: Path) -> str:
    (root / "set").mkdir()
    write_beton(store, root / "set" / "a.beton", workers=1)
    return str(root / "set" / "a.beton")


def zarr(store: stepwell.Store, root: Path) -> str:
    library = pytest.importorskip("zarr")
    group = library.open_group(str(root / "set" / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("data/action", data=np.concatenate([episode["action"] for episode in store]), chunks=(4, 2))
    group.create_array("meta/episode_ends", data=np.cumsum([episode.length for episode in store]))
    return str(root / "set" / "a.zarr")


def folders(store: stepwell.Store, root: Path) -> str:
    for number, episode in enumerate(store):
        for step, image in enumerate(episode["image"]):
            path = root / "set" / f"run_{number}" / "front" / f"{step}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stepwell.codecs.make_codec(Image((24, 32, 3), codec="jpeg")).encode(image))
        np.save(root / "set" / f"run_{number}" / "action.npy", episode["action"])
    return str(root / "set")


def told(source: str, name: str, **options: Any) -> list[Any]:
    """Return the names, the features but for sizes of images, and what episodes are of how many steps."""
    reader = open_reader(source, name, options)
    kinds = [(name, feature.kind, feature.dtype) for name, feature in reader.schema.items()]
    return [kinds, [_counts(episode, reader.schema) for episode in reader.episodes()]]


def _counts(episode: Any, schema: Any) -> list[Any]:
    rows = {
        name: len(list(v.rows(schema[name]))) if hasattr(v, "rows") else len(v) for name, v in episode.columns.items()
    }
    return [rows, sorted(episode.metadata), episode.terminated, episode.truncated]


@pytest.mark.parametrize(
    ("make", "name", "options", "left_out"),
    [
        # without _info.json the endings are names, and one shard of several is no less a data set
        (webdataset, "webdataset", {}, {"missing"}),
        (webdataset_episodes, "webdataset-episodes", {}, {"missing"}),
        (rlds, "rlds", {"split": "all"}, set()),
        (tfds, "tfds", {"split": "all"}, set()),
        (beton, "beton", {}, {"missing", "names"}),
        (zarr, "zarr", {}, set()),
        # one that is missing at the end, or whose array is missing, was never there
        (folders, "folders", {"layout": "episodes"}, {"missing"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_loses_nothing_without_a_word(
    store: stepwell.Store,
    tmp_path: Path,
    make: Callable[..., str],
    name: str,
    options: dict[str, Any],
    left_out: set[str],
) -> None:
    source = make(store, tmp_path)
    good = told(source, name, **options)
    assert sum(next(iter(rows.values())) for rows, *_ in good[1]) == store.num_steps
    report = check_damage(
        tmp_path / "set",
        lambda _: told(source, name, **options),
        count=COPIES,
        seed=len(name),
        is_right=lambda found: found == good,
        kinds=[kind for kind in KINDS if kind not in left_out],
    )
    assert sum(report.errors.values()) + sum(report.warnings.values()) + report.num_read == COPIES
    assert report.errors
