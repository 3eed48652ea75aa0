"""timm's reader of TFDS without TensorFlow: exact over ranks and workers, and in timm itself where that is there."""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, EncodedRows, Image, Text
from stepwell.errors import DatasetNotFoundError, FeatureNotFoundError, FormatError, LoaderError
from stepwell.tfds import write_tfds

torch = pytest.importorskip("torch")
pillow = pytest.importorskip("PIL.Image")
pytest.importorskip("imagecodecs")

from stepwell.timm import ParserTfds, ReaderTfds, install  # noqa: E402

from .rank_processes import run_ranks  # noqa: E402
from .timm_ranks import batches_of  # noqa: E402

NUMBER = 103
LABELS = ["ant", "bee", "cat", "dog"]


def made(folder: Path, number: int = NUMBER) -> Path:
    """Write a dataset: image i is of grey i, its label i % 4, JPEG files in four shards."""
    files, rng = [], np.random.default_rng(0)
    for place in range(number):
        buffer = io.BytesIO()
        pixels = np.full((24, 32, 3), place, np.uint8)
        # a part that every way to decode makes something else of
        pixels[8:, 8:] = rng.integers(0, 256, (16, 24, 3))
        pillow.fromarray(pixels).save(buffer, "JPEG", quality=100, subsampling=0)
        files.append(EncodedRows([buffer.getvalue()]))
    schema = {"image": Image((24, 32, 3), codec="jpeg"), "label": Array((), "int64"), "file_name": Text()}
    rows = (
        {"image": file, "label": np.array([place % 4]), "file_name": [f"d/{place}.jpg"]}
        for place, file in enumerate(files)
    )
    store = stepwell.write_episodes(folder / "set.well", rows, schema=schema, workers=1)
    write_tfds({"train": store, "val": store}, folder, name="set", labels={"label": LABELS}, num_shards=4, workers=1)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(made(tmp_path_factory.mktemp("timm")))


def greys(batches):
    return [grey for batch in batches for grey, _ in batch]


EVALUATION = [({"batch_size": size}, workers, 1) for size in (1, 8, 17, 34, 50) for workers in (0, 2)]
TRAINING = [
    ({"batch_size": 8, "is_training": True}, 2, 2),
    ({"batch_size": 8, "is_training": True, "repeats": 3}, 2, 1),
    ({"batch_size": 8, "is_training": True, "seed": 1}, 2, 1),
    ({"batch_size": 8, "is_training": True}, 0, 1),
]


@pytest.fixture(scope="module")
def served(root, tmp_path_factory):
    return run_ranks(3, "timm_ranks:serve", tmp_path_factory.mktemp("ranks") / "served", root, EVALUATION + TRAINING)


def test_each_sample_is_evaluated_once_over_ranks_and_workers(served):
    for number, (options, workers, _) in enumerate(EVALUATION):
        ranks = [rank[number][0] for rank in served]
        assert [grey for rank in ranks for grey in greys(rank)] == list(range(NUMBER)), (options, workers)
        counts = {len(rank) for rank in ranks}
        # one more batch on some ranks cannot be helped where there is one worker, and is told
        warned = sum(rank[number][1] for rank in served)
        assert len(counts) == 1 or (warned and (workers == 0 or options["batch_size"] == 1)), (options, workers)
        assert all(label == grey % 4 for rank in ranks for batch in rank for grey, label in batch)


def test_an_epoch_of_training_serves_all_in_full_batches_and_wraps_around(served):
    epochs = [[greys(rank[place][0]) for rank in served] for place in range(len(EVALUATION), len(EVALUATION) + 5)]
    for place, ranks in enumerate(epochs):
        counts = Counter(grey for rank in ranks for grey in rank)
        passes = 3 if place == 2 else 1
        workers = 1 if place == 4 else 2
        assert len({len(rank) for rank in ranks}) == 1 and len(ranks[0]) % (8 * workers) == 0
        assert set(counts) == set(range(NUMBER))
        # what is beyond the passes is served first once more
        assert set(counts.values()) <= {passes, passes + 1}
        assert sum(counts.values()) - passes * NUMBER < 3 * 8 * workers
    assert len({tuple(ranks[0]) for ranks in epochs}) == 5


def test_an_epoch_is_the_same_for_any_workers_and_another_for_another_epoch(root):
    reader = ReaderTfds("set", root, "train", is_training=True, batch_size=103)
    one = greys(batches_of(reader, 0))
    assert sorted(one) == list(range(NUMBER)) and one != sorted(one)
    assert greys(batches_of(reader, 0)) == one
    reader.set_epoch(1)
    assert greys(batches_of(reader, 0)) != one
    again = ReaderTfds("set", root, "train", is_training=True, batch_size=1)
    assert greys(batches_of(again, 2))[:NUMBER] == one


def test_pixels_are_tensorflows_or_pillows(root):
    ways = ("fast", "exact")
    for dct in ways:
        store = stepwell.open(f"tfds://{root}/set", dct=dct)
        images = [np.asarray(image) for image, _ in ReaderTfds("set", root, dct=dct)]
        for number in (0, 50, 102):
            np.testing.assert_array_equal(images[number], store[number]["image"][0])
    fast, exact = (np.stack([np.asarray(image) for image, _ in ReaderTfds("set", root, dct=dct)]) for dct in ways)
    assert (fast != exact).any()
    default = next(iter(ReaderTfds("set", root)))[0]
    np.testing.assert_array_equal(np.asarray(default), fast[0])


def test_modes_class_maps_and_names(root, tmp_path):
    reader = ReaderTfds("set", root, "val[:10]", input_img_mode="L")
    image, target = next(iter(reader))
    assert (image.mode, image.size, target, reader.class_to_idx["cat"], len(reader)) == ("L", (32, 24), 0, 2, 10)
    assert reader.filenames() == [f"d/{i}.jpg" for i in range(10)]
    assert reader.filenames(basename=True)[3] == "3.jpg" == reader.filename(3, basename=True)
    plain = ReaderTfds("set", root, "val[:10]", input_img_mode="", target_key="image", target_img_mode="RGB")
    array, picture = next(iter(plain))
    assert array.dtype == np.uint8 and np.array_equal(array, np.asarray(picture))
    (tmp_path / "classes.txt").write_text("dog\ncat\nbee\nant\n")
    for class_map in (
        str(tmp_path / "classes.txt"),
        {"dog": 0, "cat": 1, "bee": 2, "ant": 3},
        {0: 3, 1: 2, 2: 1, 3: 0},
    ):
        mapped = ReaderTfds("set", root, "val[:8]", class_map=class_map)
        assert [target for _, target in mapped] == [3, 2, 1, 0, 3, 2, 1, 0]
    for nothing in (None, "", {}):
        assert [target for _, target in ReaderTfds("set", root, "val[:4]", class_map=nothing)] == [0, 1, 2, 3]
    with pytest.raises(FormatError, match=r"no class 1\. There are: ant"):
        list(ReaderTfds("set", root, "val[:8]", class_map={"ant": 0}))
    with pytest.raises(FormatError, match=r"Allowed: a mapping, or a \.txt file"):
        ReaderTfds("set", root, class_map="map.pkl")
    with pytest.raises(LoaderError, match="no path of their own"):
        reader.filenames(absolute=True)


def test_what_is_not_there_is_an_error(root):
    with pytest.raises(DatasetNotFoundError):
        ReaderTfds("imagenet2012", root, download=True)
    with pytest.raises(FeatureNotFoundError, match="picture"):
        ReaderTfds("set", root, input_key="picture")
    with pytest.raises(FormatError, match="Allowed: name, name/config"):
        ReaderTfds("../set", root)
    with pytest.raises(LoaderError, match="batch_size=0"):
        ReaderTfds("set", root, batch_size=0)


def test_the_older_class_takes_its_arguments(root):
    older = ParserTfds(root, "set", "val[:3]", input_name="image", target_name="label", input_image="RGB")
    newer = ReaderTfds("set:1.0.0", root, "val[:3]")
    for (image, target), (other, same) in zip(older, newer, strict=True):
        assert target == same and np.array_equal(np.asarray(image), np.asarray(other))


def test_timm_makes_datasets_and_loaders_of_it_and_trains_a_resnet(root):
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    import sys

    from timm.data import create_dataset, create_loader

    install()
    try:
        # as timm's train.py asks for it
        asked = {"class_map": "", "download": False, "seed": 42, "repeats": 0, "input_img_mode": "RGB"}
        training = create_dataset("tfds/set", root=root, split="train", is_training=True, batch_size=16, **asked)
        assert isinstance(training.reader, ReaderTfds)
        training.set_epoch(3)
        loader = create_loader(
            training, (3, 32, 32), 16, is_training=True, num_workers=2, use_prefetcher=False, persistent_workers=False
        )
        model = timm.create_model("resnet18", num_classes=4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        losses = []
        for images, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert len(losses) == len(loader) == 8 and np.isfinite(losses).all()
        held = create_dataset("tfds/set", root=root, split="val", batch_size=16)
        tests = create_loader(held, (3, 32, 32), 16, num_workers=2, use_prefetcher=False, persistent_workers=False)
        assert [int(t) for _, targets in tests for t in targets] == [place % 4 for place in range(NUMBER)]
        assert held.filenames(basename=True)[:2] == ["0.jpg", "1.jpg"]
        assert "tensorflow" not in sys.modules
    finally:
        for place in ("readers.reader_tfds", "parsers.parser_tfds"):
            sys.modules.pop(f"timm.data.{place}", None)
