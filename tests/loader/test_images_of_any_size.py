"""Batches of images of any size: the same by every order, number of threads, pool and library."""

import itertools
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Field, Image, View
from stepwell.errors import WindowError
from stepwell.loader import Loader, WindowDataset
from stepwell.order import pooled, random, sequential
from stepwell.store import Store
from stepwell.testing import smooth_image
from stepwell.transforms import (
    CenterResizedCrop,
    GaussianNoise,
    Mixup,
    Normalize,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    ToCHW,
    ToFloat,
    Together,
)
from stepwell.windows import WindowReader

pytest.importorskip("simplejpeg")

ANY_SIZE = Image((None, None, 3), codec="jpeg", final=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(0)
    schema = {"image": ANY_SIZE, "label": stepwell.Array((), "int64")}
    store = stepwell.create(tmp_path_factory.mktemp("any") / "a.well", schema, segment_bytes=20_000)
    with store.writer() as writer:
        for episode, length in enumerate((1, 12, 1, 7, 20, 1)):
            sides = rng.integers(12, 60, (length + 1, 2)).tolist()
            images = [smooth_image(Image((*side, 3)), k) for k, side in enumerate(sides)]
            writer.add_episode({"image": images, "label": 100 * episode + np.arange(length)}, terminated=True)
    store.refresh()
    return store


def fields(store: Store) -> dict[str, Any]:
    steps = Normalize.of(store, "image")
    return {
        "label": "label",
        "train": Field("image", [-1, 0], decoder=RandomResizedCrop(16), transform=(RandomFlip(), steps, ToCHW())),
        "next": Field("image", [0, 1], decoder=RandomCrop(10, key="a"), pad="zero"),
        "test": Field("image", decoder=CenterResizedCrop(14, part=0.875), transform=ToFloat()),
        "whole": Field("image", [0, 1], decoder=Resize((9, 12)), pad="zero"),
        "goal": Field("image", at="final", decoder=Resize(8)),
        "objects": "image",
    }


def rows_of(batches: Any) -> dict[int, dict[str, bytes]]:
    """Return every window by its label, as bytes."""
    found = {}
    for batch in batches:
        for i, label in enumerate(np.asarray(batch["label"]).tolist()):
            found[label] = {key: np.asarray(values[i]).tobytes() for key, values in batch.items()}
    return found


@pytest.mark.parametrize("order", [random(5), sequential(), pooled(8_000, seed=5, blocks=4), pooled(seed=5)], ids=repr)
def test_windows_are_the_same_for_any_threads_and_past_the_page_cache(store: Store, order: Any) -> None:
    options: dict[str, Any] = {"order": order, "seed": 5, "batch_size": 5, "epochs": 1}
    for page_cache in (True, False):
        found = [
            rows_of(Loader(store, fields(store), threads=threads, page_cache=page_cache, **options))
            for threads in (0, 3)
        ]
        assert len(found[0]) == store.num_steps
        assert found[0] == found[1]
    # what is not random is that of any order
    plain = WindowReader(View(store), fields(store)).read(np.arange(store.num_steps))
    for label, rows in rows_of([plain]).items():
        for key in ("whole", "whole_is_pad", "goal"):
            assert found[0][label][key] == rows[key]


def test_what_a_window_draws_depends_on_its_position_alone(store: Store) -> None:
    options: dict[str, Any] = {"order": random(5), "seed": 5, "epochs": 1}
    whole = rows_of(Loader(store, fields(store), batch_size=64, threads=0, **options))
    parts = [Loader(store, fields(store), batch_size=3, threads=2, rank=k, world_size=2, **options) for k in (0, 1)]
    assert rows_of(itertools.chain(*parts)) == whole
    again = rows_of(Loader(store, fields(store), batch_size=64, threads=0, order=random(6), seed=6, epochs=1))
    assert again[0]["train"] != whole[0]["train"]


def test_a_pool_holds_what_decoders_make_that_draw_nothing(store: Store) -> None:
    reader = WindowReader(View(store), fields(store))
    held = {(column.name, column.shape) for column in reader.row_loader.columns}
    assert held == {("image", (14, 14, 3)), ("image", (9, 12, 3))}
    assert not WindowReader(View(store), {"image": Field("image", decoder=RandomCrop(9))}).row_loader.columns


@pytest.mark.parametrize("decoder", [RandomResizedCrop(16), Resize(8)])
def test_a_pooled_order_of_nothing_else_visits_every_step_once(store: Store, decoder: Any) -> None:
    loader = Loader(store, {"label": "label", "image": Field("image", decoder=decoder)}, order="pooled", batch_size=8)
    for _ in range(2):
        labels = np.concatenate([batch["label"] for batch in loader])
        assert sorted(labels.tolist()) == sorted(np.concatenate([episode["label"] for episode in store]).tolist())


def test_torch_gets_tensors_of_them_and_objects_as_they_are(store: Store) -> None:
    torch = pytest.importorskip("torch")
    numpy_batch = next(iter(Loader(store, fields(store), order=random(1), batch_size=4)))
    batch = next(iter(Loader(store, fields(store), order=random(1), batch_size=4, to="torch")))
    assert batch["train"].shape == (4, 2, 3, 16, 16)
    assert batch["train"].dtype == torch.float32
    for key in ("train", "next", "test", "whole"):
        np.testing.assert_array_equal(batch[key].numpy(), numpy_batch[key])
    assert batch["objects"].dtype == object
    for one, other in zip(batch["objects"], numpy_batch["objects"], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_window_dataset_gives_the_same_windows(store: Store) -> None:
    dataset = WindowDataset(store, fields(store), seed=5)
    plain = WindowReader(View(store), fields(store)).read(np.arange(store.num_steps))
    assert dataset[3]["train"].shape == (2, 3, 16, 16)
    for index in (0, 3, 30):
        np.testing.assert_array_equal(dataset[index]["whole"], plain["whole"][index])
        np.testing.assert_array_equal(dataset[index]["objects"], plain["objects"][index])


@pytest.mark.parametrize("transform", [ToFloat(), RandomFlip(), Normalize(0.0, 1.0), GaussianNoise(0.1), RandomCrop(9)])
def test_a_transform_that_needs_one_shape_is_refused_with_the_way_out(store: Store, transform: Any) -> None:
    with pytest.raises(
        WindowError, match=r"the images of 'image' vary in size, and .* needs one shape.*decoder=Resize"
    ):
        Loader(store, {"image": Field("image", transform=transform)})
    with pytest.raises(WindowError, match="vary in size"):
        next(iter(WindowDataset(store, {"image": Field("image", transform=transform)})))


def test_functions_get_the_images_as_they_are(store: Store) -> None:
    def heights(images: Any) -> Any:
        return np.array([image.shape[0] for image in images])

    batch = next(iter(Loader(store, {"image": Field("image", transform=heights)}, order="sequential", batch_size=13)))
    assert batch["image"].tolist() == [image.shape[0] for e in (store[0], store[1]) for image in e["image"][: e.length]]


@pytest.mark.parametrize("transform", [Mixup("image", alpha=0.5), Together(("image",), RandomFlip())])
def test_transforms_of_batches_get_images_of_one_size(store: Store, transform: Any) -> None:
    good = {"image": Field("image", decoder=Resize(8))}
    assert next(iter(Loader(store, good, transform=transform)))["image"].shape == (42, 8, 8, 3)
