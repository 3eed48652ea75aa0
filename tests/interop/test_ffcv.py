"""Beside the real FFCV: it reads what stepwell wrote in every order and cache mode, and stepwell reads its files."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Image, convert
from stepwell.beton import write_beton
from stepwell.ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
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
