"""Beside the real FFCV: it reads what stepwell wrote in every order and cache mode, and stepwell reads its files."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import stepwell
import stepwell.ffcv.decoders as ffcv_decoders
import stepwell.ffcv.transforms as ffcv_transforms
from stepwell import Array, Field, Image, convert
from stepwell.beton import write_beton
from stepwell.ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from stepwell.ffcv.loader import Loader, OrderOption
from stepwell.ffcv.pipeline import Operation, State
from stepwell.ffcv.writer import DatasetWriter
from stepwell.windows import View
from stepwell.windows.reader import WindowReader

VARIABLE = "STEPWELL_FFCV_PYTHON"
HERE = Path(__file__).parent
PYTHON = Path(os.environ.get(VARIABLE, HERE.parents[1] / ".venv-interop" / "ffcv" / "bin" / "python"))
REASON = f"FFCV is not here: make test-interop-ffcv, or name its interpreter by {VARIABLE}"
MODES = [f"{order}/{cache}" for order in ("QUASI_RANDOM", "RANDOM", "SEQUENTIAL") for cache in (0, 1)]

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason=REASON),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Return what lets FFCV do something and gives the .npz file that came of it."""
    log = tmp_path_factory.mktemp("ffcv") / "errors"
    with log.open("w") as errors:
        command = [str(PYTHON), "-P", str(HERE / "answering.py"), str(HERE / "ffcv_child.py")]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=log.parent
        )

    def do(name, out, **arguments):
        process.stdin.write(json.dumps({"do": name, "out": str(out), **arguments}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"FFCV died: {log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer, np.load(out, allow_pickle=True)

    yield do
    process.kill()
    process.communicate()


def test_samples_of_every_kind_are_read_in_every_mode(ask, tmp_path):
    rng = np.random.default_rng(0)
    samples = [
        (
            i,
            rng.integers(0, 255, (24, 32, 3), dtype=np.uint8),
            float(rng.normal()),
            bytes(rng.integers(0, 255, i % 4, dtype=np.uint8)),
            {"i": i},
            rng.normal(size=(16, 10)).astype("f4"),
        )
        for i in range(90)
    ]
    fields = {
        "number": IntField(),
        "image": RGBImageField(),
        "float": FloatField(),
        "bytes": BytesField(),
        "json": JSONField(),
        "array": NDArrayField(np.dtype("float32"), (16, 10)),
    }
    DatasetWriter(tmp_path / "a.beton", fields, 1 << 16, 2).from_indexed_dataset(samples)
    told, found = ask("read", tmp_path / "a.npz", path=str(tmp_path / "a.beton"), batch_size=16)
    assert told == {"names": list(fields), "modes": MODES}
    for mode in MODES:
        numbers = found[f"{mode}/number"][:, 0]
        assert sorted(numbers.tolist()) == list(range(90))
        for place, number in enumerate(numbers.tolist()):
            _, image, value, data, told_json, array = samples[number]
            assert np.array_equal(found[f"{mode}/image"][place], image)
            assert found[f"{mode}/float"][place, 0] == value
            assert found[f"{mode}/bytes"][place][: len(data)].tobytes() == data
            assert json.loads(found[f"{mode}/json"][place].tobytes().split(b"\0")[0]) == told_json
            assert np.array_equal(found[f"{mode}/array"][place], array)


def record(path, lengths):
    schema = {
        "obs": Array(11, final=True),
        "action": Array(3, "float64"),
        "camera": Image((16, 20, 3)),
        # decoded by the transform that FFCV uses
        "top": Image((24, 24, 3), codec="jpeg", dct="fast"),
    }
    rng = np.random.default_rng(0)
    store = stepwell.create(path, schema)
    ramp = np.add.outer(np.arange(24), np.arange(24))[..., None] + np.zeros(3)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            columns = {
                "obs": rng.normal(size=(length + 1, 11)).astype("f4"),
                "action": rng.normal(size=(length, 3)),
                "camera": rng.integers(0, 255, (length, 16, 20, 3), dtype=np.uint8),
                "top": np.stack([ramp + 3 * t + 40 * number for t in range(length)]).astype(np.uint8),
            }
            writer.add_episode(columns, terminated=True)
    store.refresh()
    return store


# (windows, page size): episodes of several pages, and pages of several episodes
CASES = {
    "padded": ({"obs": range(-3, 1), "action": range(8), "camera": [-1, 0], "top": [-2, 0]}, 1 << 16),
    "zeros and masks": ({"obs": Field("obs", [-4, -2, 0], pad="zero"), "action": [0, 3, 1]}, 1 << 21),
    "transitions": ({"obs": None, "next_obs": Field("obs", 1), "action": Field("action", [0, 1], pad="drop")}, 1 << 16),
}


@pytest.mark.parametrize("case", CASES)
def test_windows_over_shared_rows_are_read_right_in_every_mode(ask, tmp_path, case):
    windows, page_size = CASES[case]
    windows = {"step": "step_id", **windows}
    store = record(tmp_path / "a.well", (60, 1, 90, 7))
    masks = case == "zeros and masks"
    write_beton(store, tmp_path / "a.beton", windows=windows, workers=0, page_size=page_size, masks=masks)
    told, found = ask("read", tmp_path / "a.npz", path=str(tmp_path / "a.beton"), batch_size=16)
    reader = WindowReader(View(store), windows)
    assert told["modes"] == MODES
    for mode in MODES:
        steps = found[f"{mode}/step"][:, 0]
        positions = reader.index.positions_of(steps)
        assert sorted(positions.tolist()) == list(range(reader.index.num_anchors))
        for key, values in reader.read(positions).items():
            if key == "top":
                images = np.stack([found[f"{mode}/top_{place}"] for place in range(2)], axis=1)
                assert np.array_equal(images, values)
            elif f"{mode}/{key}" in found:
                got = found[f"{mode}/{key}"]
                assert np.array_equal(got.reshape(values.shape), values), (mode, key)
            else:
                assert key.endswith("_is_pad") and not masks


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_by_ffcv_is_read_to_what_it_was_given(ask, tmp_path, workers):
    _, given = ask("write", tmp_path / "a.npz", path=str(tmp_path / "a.beton"), workers=workers)
    convert(tmp_path / "a.beton", tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert len(store) == 50
    for number, episode in enumerate(store):
        for name in ("image", "array", "tensor"):
            assert np.array_equal(episode[name][0], given[name][number])
        assert (episode["int"][0], episode["float"][0]) == (given["int"][number], given["float"][number])
        assert episode["bytes"][0] == given["bytes"][number].tobytes()
        assert json.loads(episode["json"][0]) == given["json"][number]


def batch_of(rng, path, **arrays):
    """Save images with the samples' numbers, and return them."""
    values = rng.integers(0, 256, (16, 24, 32, 3), dtype=np.uint8)
    indices = rng.permutation(100)[:16].astype(np.uint64)
    np.savez(path, values=values, indices=indices, **arrays)
    return values, indices


class Given:
    """Random numbers that are given: those that numpy's generator drew for FFCV."""

    def __init__(self, *columns):
        self._columns = list(columns)

    def uniform(self, low=0.0, high=1.0, size=()):
        return low + (high - low) * np.asarray(self._columns.pop(0))

    def integers(self, low, high, size=()):
        return np.asarray(self._columns.pop(0)) + low

    def __len__(self):
        return 16


def scalars(random, number):
    return np.array([[[random.randint(high) for high in number]] for _ in range(16)])


# what FFCV draws, in its order, as our transform asks for it
DRAWN = {
    "RandomHorizontalFlip": ({"flip_prob": 0.5}, lambda random: [random.rand(16)[:, None]]),
    "RandomTranslate": ({"padding": 4, "fill": [1, 2, 250]}, lambda random: [scalars(random, (9, 9))]),
    "Cutout": (
        {"crop_size": 8, "fill": [1, 2, 250]},
        lambda random: [scalars(random, (17, 25)) / [17, 25] + 1e-9, np.zeros((16, 1, 1))],
    ),
    "RandomBrightness": ({"magnitude": 0.6, "p": 0.7}, lambda random: [random.rand(16), random.rand(16)]),
    "RandomContrast": ({"magnitude": 0.6, "p": 0.7}, lambda random: [random.rand(16), random.rand(16)]),
    "RandomSaturation": ({"magnitude": 0.6, "p": 0.7}, lambda random: [random.rand(16), random.rand(16)]),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_transform_is_ffcv_s_for_the_numbers_that_it_drew(ask, tmp_path, name):
    options, draws_of = DRAWN[name]
    values, _ = batch_of(np.random.default_rng(0), tmp_path / "a.npz")
    given = {"given": str(tmp_path / "a.npz"), "transform": name, "options": options, "seed": 5, "compiled": False}
    _, found = ask("apply", tmp_path / "b.npz", **given)
    draws = Given(*draws_of(np.random.RandomState(5)))
    made = getattr(ffcv_transforms, name)(**options).lowered()(values.copy(), draws)
    assert np.array_equal(made, found["made"])
    assert not np.array_equal(made, values)


INDEXED = {
    "ImageMixup": {"alpha": 0.5, "same_lambda": False},
    "ImageMixup, one weight": {"alpha": 0.5, "same_lambda": True},
    "LabelMixup": {"alpha": 0.5, "same_lambda": False},
    "LabelMixup, one weight": {"alpha": 2.0, "same_lambda": True},
    "Poison": {"mask": "@mask", "alpha": "@alpha", "indices": "@indices"},
    "ReplaceLabel": {"indices": "@chosen", "new_label": 7},
    "NormalizeImage": {"mean": "@mean", "std": "@std", "type": "float32"},
    "NormalizeImage, half": {"mean": "@mean", "std": "@std", "type": "float16"},
}


@pytest.mark.parametrize("case", INDEXED)
def test_a_transform_without_draws_is_ffcv_s_compiled_code(ask, tmp_path, case):
    name, options = case.partition(",")[0], INDEXED[case]
    rng = np.random.default_rng(1)
    arrays = {
        "mask": rng.normal(128, 90, (24, 32, 3)),
        "alpha": rng.uniform(size=(24, 32)),
        "mean": np.array([120.0, 110.0, 100.0]),
        "std": np.array([60.0, 50.0, 40.0]),
    }
    values, indices = batch_of(rng, tmp_path / "a.npz")
    if "Label" in name:
        values = rng.integers(0, 10, (16, 1))
    arrays["chosen"] = indices[::3]
    np.savez(tmp_path / "a.npz", values=values, indices=indices, **arrays)
    given = {"given": str(tmp_path / "a.npz"), "transform": name, "options": options, "seed": 0, "compiled": True}
    _, found = ask("apply", tmp_path / "b.npz", **given)
    named = {**arrays, "indices": indices}
    mine = {key: named[value[1:]] if str(value).startswith("@") else value for key, value in options.items()}
    operation: Operation = getattr(ffcv_transforms, name)(**mine)
    state, query = operation.declare_state_and_memory(State(True, None, values.shape[1:], values.dtype))
    code = operation.generate_code()
    memory = None if query is None else query.allocate(16)
    made = code(values.copy(), memory, indices) if code.with_indices else code(values.copy(), memory)
    assert made.dtype == found["made"].dtype == state.dtype
    if name == "ImageMixup":
        # FFCV's code may join a product and a sum, which rounds otherwise
        assert np.abs(made.astype(int) - found["made"]).max() <= 1 and (made != found["made"]).mean() < 1e-3
    else:
        assert np.array_equal(made, found["made"])


def boxes_by_ffcv(random, sizes, crop):
    """Return the parts that FFCV's decoder of random parts draws, by numpy's generator, as ours makes them."""
    low, high = np.log(crop.ratio)
    for height, width in sizes:
        parts, ratios = [], []
        for _ in range(10):
            parts.append(random.uniform(*crop.scale))
            ratios.append(np.exp(random.uniform(low, high)))
            area = height * width * parts[-1]
            sides = round((area / ratios[-1]) ** 0.5), round((area * ratios[-1]) ** 0.5)
            if sides[0] <= height and sides[1] <= width:
                room = height - sides[0] + 1, width - sides[1] + 1
                places = [random.uniform(0, room[0]) / room[0], random.uniform(0, room[1]) / room[1]]
                missing = 10 - len(parts)
                yield crop.box(height, width, [*parts, *[1] * missing, *ratios, *[1] * missing, *places])
                break
        else:
            yield crop.box(height, width, [*parts, *ratios, 0, 0])


@pytest.mark.parametrize("mode", ["raw", "jpg"])
@pytest.mark.parametrize("ratio", [None, 0.875])
def test_parts_are_cut_and_resized_as_by_ffcv(ask, tmp_path, mode, ratio):
    rng = np.random.default_rng(3)
    ramp = np.add.outer(np.arange(200), 2 * np.arange(300))[..., None] / 4 + rng.normal(0, 9, (200, 300, 3))
    sizes = [(int(rng.integers(40, 200)), int(rng.integers(40, 300))) for _ in range(30)] + [(20, 290), (190, 20)]
    images = [np.clip(ramp[:height, :width], 0, 255).astype(np.uint8) for height, width in sizes]
    path = str(tmp_path / "a.beton")
    fields = {"image": RGBImageField(mode), "label": IntField()}
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset([(image, 0) for image in images])
    _, found = ask("decode", tmp_path / "b.npz", path=path, size=[48, 64], seed=7, ratio=ratio)
    decoder = ffcv_decoders.RandomResizedCropRGBImageDecoder((48, 64))
    if ratio is not None:
        decoder = ffcv_decoders.CenterCropRGBImageDecoder((48, 64), ratio)
    crop = decoder.crop
    boxes = boxes_by_ffcv(np.random.RandomState(7), sizes, crop) if ratio is None else None
    whole = ffcv_transforms.OpencvResize((48, 64))
    store = stepwell.open(f"beton://{path}")
    for number, (size, theirs) in enumerate(zip(sizes, found["images"], strict=True)):
        top, left, height, width = crop.box(*size, ()) if boxes is None else next(boxes)
        pixels, ours = store[number]["image"][0], np.empty((48, 64, 3), np.uint8)
        whole.convert(np.ascontiguousarray(pixels[top : top + height, left : left + width]), ours, None)
        assert np.abs(ours.astype(int) - theirs).max() <= 1
    # what the loader gives is what these calls make
    if ratio is not None:
        loader = Loader(path, 8, 2, drop_last=False, pipelines={"image": [decoder], "label": None})
        got = np.concatenate([batch[0] for batch in loader])
        assert np.abs(got.astype(int) - found["images"]).max() <= 1


@pytest.mark.parametrize("order", ["SEQUENTIAL", "RANDOM"])
def test_orders_are_those_of_ffcv_for_a_seed(ask, tmp_path, order):
    path = str(tmp_path / "a.beton")
    DatasetWriter(path, {"n": IntField()}, num_workers=1).from_indexed_dataset([(i,) for i in range(100)])
    _, found = ask("orders", tmp_path / "b.npz", path=path, order=order, seed=11)
    loader = Loader(path, 8, 1, order=OrderOption[order], seed=11, drop_last=False)
    for theirs in found["orders"]:
        assert np.array_equal(np.concatenate([batch[0][:, 0] for batch in loader]), theirs)
