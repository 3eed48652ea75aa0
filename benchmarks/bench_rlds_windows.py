"""rlds_windows: random windows of an RLDS dataset that was imported once, beside tf.data with a shuffle buffer.

200 episodes of 150 steps: states and actions of 7 floats; in the second case 20, with a JPEG image of 256 x 256 a step.
Windows of 2 states (and images) and 8 actions, edges repeated and told by masks, batches of 256. "tf.data" is what Octo
does by dlimp, with Octo's buffer of 500,000 windows (openpi's has 250,000; with images a tenth) that is full before it
is timed, on all processors, in an interpreter that ``STEPWELL_FORMATS_PYTHON`` names; see tfds_child.py. Ours reads in
a random order over all windows, numbers by the consumer's thread, images by as many as there are processors. The
dataset is written by stepwell and imported by it; all windows of an epoch are compared. Images stay encoded in the
buffer, and are decoded behind it; here, too, when they are read.

Memory is each process's own (RssAnon), above what it had after its imports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from asked import asked
from children import run_child
from datasets import photo_crops
from report import Row, skipped, within
from timing import Settings, memcpy_gb_per_s

import stepwell
from stepwell import Array, Field, Image, Loader, convert
from stepwell.tfds import write_rlds

__all__ = ["run"]

NAME, RIVAL = "rlds_windows", "tf.data"
PYTHON = "STEPWELL_FORMATS_PYTHON"
EPISODES, LENGTH, BATCH, BUFFER = 200, 150, 256, 500_000
SPEED_TARGET, MEMORY_TARGET = 50.0, 20.0
NUMBERS = {"observation.state": [-1, 0], "action": list(range(8))}
IMAGES = {"observation.image": [-1, 0], **NUMBERS}
SIDE, SHARE_OF_IMAGES = 256, 10
FEATURES = {
    "observation.state": Array(7),
    "action": Array(7),
    "observation.image": Image((SIDE, SIDE, 3), codec="jpeg", quality=90),
}
CASES = {"2 states, 8 actions": NUMBERS, "2 states, 8 actions, 2 images": IMAGES}
# tf.data decodes by other means than libjpeg's most exact ones
JPEG_ATOL = 24
ROUNDS = 7
BATCHES_A_LOOK = 20

OURS = """
import stepwell
from stepwell import Field, Loader
import numba, stepwell.windows.reader, stepwell.kernels.gather
store = stepwell.open(argument["path"], mode="r")
before = anonymous()
fields = {name: Field(name, each, pad="edge") for name, each in argument["offsets"].items()}
loader = Loader(store, {**fields, "index": "index"}, batch_size=argument["batch"], order="random", epochs=None,
                threads=argument["threads"])
end, most = time.monotonic() + argument["seconds"], 0
for batch in loader:
    most = max(most, anonymous())
    if time.monotonic() > end:
        break
print(json.dumps({"before": before, "most": most}))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A dataset and the windows that are read of it.

    Args:
        name: said by rows.
        offsets: of each field.
        dataset: the RLDS dataset.
        store: what was imported of it.
        buffer: windows that tf.data shuffles.
    """

    name: str
    offsets: Mapping[str, list[int]]
    dataset: Path
    store: Path
    buffer: int

    @property
    def fields(self) -> dict[str, Any]:
        """The same windows for stepwell."""
        return {"index": "index", **{name: Field(name, each, pad="edge") for name, each in self.offsets.items()}}

    @property
    def threads(self) -> int | None:
        """Of ours: the consumer alone, or to decode images as many as tf.data takes."""
        return None if self.is_numbers else len(os.sched_getaffinity(0))

    @property
    def is_numbers(self) -> bool:
        """Whether there are no images, which is what a target is set for."""
        return self.offsets is NUMBERS


def run(settings: Settings) -> Iterator[Row]:
    """Yield three rows for each case: windows a second, memory above the imports, memory with them."""
    if os.environ.get(PYTHON) is None:
        yield from skipped(NAME, RIVAL, *CASES)
        return
    for name, offsets in CASES.items():
        case = _made(settings.data / str(len(offsets)), name, offsets, settings)
        with _rival() as ask:
            yield from _beside(settings, ask, case)


def _beside(settings: Settings, ask: Any, case: Case) -> Iterator[Row]:
    with stepwell.open(case.store, mode="r") as store:
        before = ask("memory")["own"]
        _check(ask, case, store)
        dataset, offsets = str(case.dataset), case.offsets
        ask("open", path=dataset, offsets=offsets, buffer=case.buffer, batch_size=BATCH, epochs=None)
        loader = Loader(store, case.fields, batch_size=BATCH, order="random", epochs=None, threads=case.threads)
        batches = iter(loader)
        next(batches)
        theirs, ours = [], []
        # longer than what tf.data has ready when its turn begins
        seconds = settings.sized(2 if case.is_numbers else 6, 0)
        for _ in range(settings.sized(ROUNDS, 1)):
            theirs.append(ask("rate", seconds=seconds)["rate"])
            ours.append(_rate(batches, settings.sized(1, 0)))
    memcpy = memcpy_gb_per_s(settings)
    ratios = np.array(ours) / np.array(theirs)
    yield Row(
        bench=NAME,
        case=case.name,
        rival=RIVAL,
        ratio=float(np.median(ratios)),
        spread=float(np.ptp(ratios)),
        ours=float(np.median(ours)),
        theirs=float(np.median(theirs)),
        unit="windows/s",
        memcpy_gb_per_s=memcpy,
        target=SPEED_TARGET if case.is_numbers else None,
    )
    after = ask("memory")["own"]
    runs = [run_child(OURS, _argument(case, settings)) for _ in range(settings.sized(3, 1))]
    own = [(found["most"] - found["before"]) / 1e6 for found in runs]
    told = f"{case.name}, memory above imports, {case.buffer} windows buffered"
    target = MEMORY_TARGET if case.is_numbers else None
    rest = {"unit": "MB", "memcpy_gb_per_s": memcpy}
    yield within(NAME, told, RIVAL, own, (after - before) / 1e6, target=target, **rest)
    whole = [found["most"] / 1e6 for found in runs]
    yield within(NAME, f"{case.name}, memory with imports", RIVAL, whole, after / 1e6, **rest)


def _argument(case: Case, settings: Settings) -> dict[str, Any]:
    return {
        "path": str(case.store),
        "offsets": case.offsets,
        "batch": BATCH,
        "threads": case.threads,
        "seconds": settings.sized(2, 0),
    }


def _check(ask: Any, case: Case, store: stepwell.Store) -> None:
    """Compare all windows of an epoch.

    Raises:
        AssertionError: they differ.
    """
    out = str(case.store.with_name("windows.npz"))
    ask("open", path=str(case.dataset), offsets=case.offsets, buffer=1, batch_size=BATCH, epochs=1)
    ask("windows", out=out)
    with np.load(out) as theirs:
        arrays = {name: theirs[name] for name in theirs.files}
    place = np.argsort(arrays["index"], kind="stable")
    first = 0
    for batch in Loader(store, case.fields, batch_size=BATCH, order="sequential"):
        some = place[first : first + len(batch["index"])]
        first += len(some)
        for name, values in arrays.items():
            atol = JPEG_ATOL if name.endswith("image") else 0
            np.testing.assert_allclose(batch[name], values[some], rtol=0, atol=atol, err_msg=name)
    assert first == len(place), f"{first} windows, they have {len(place)}"


def _rate(batches: Iterator[Mapping[str, Any]], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < seconds:
        for _ in range(BATCHES_A_LOOK):
            count += len(next(batches)["index"])
    return count / (time.perf_counter() - start)


def _made(folder: Path, name: str, offsets: Mapping[str, list[int]], settings: Settings) -> Case:
    """Make an RLDS dataset of random steps, and import it."""
    share = 1 if offsets is NUMBERS else SHARE_OF_IMAGES
    schema = {"index": Array((), "int64"), **{field: FEATURES[field] for field in offsets}}
    folder.mkdir()
    with stepwell.create(folder / "source.well", schema) as source:
        with source.writer() as writer:
            for episode in range(settings.sized(EPISODES // share, 4)):
                writer.add_episode(_columns(episode, with_images="observation.image" in schema))
        source.refresh()
        dataset = write_rlds(source, folder, name="bench", num_shards=4, workers=1, progress=False)
    convert(str(dataset), folder / "imported.well", workers=1, progress=False)
    return Case(name, offsets, dataset, folder / "imported.well", settings.sized(BUFFER // share, 64))


def _columns(episode: int, with_images: bool) -> dict[str, Any]:
    rng = np.random.default_rng(episode)
    columns: dict[str, Any] = {
        "index": np.arange(episode * LENGTH, (episode + 1) * LENGTH),
        "observation.state": rng.normal(size=(LENGTH, 7)).astype(np.float32),
        "action": rng.normal(size=(LENGTH, 7)).astype(np.float32),
    }
    return {**columns, "observation.image": photo_crops(LENGTH, SIDE)} if with_images else columns


@contextmanager
def _rival() -> Iterator[Any]:
    """Lend what asks the rival."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with asked(os.environ[PYTHON], "tfds_child.py", "TensorFlow", variables=variables, is_quiet=True) as process:
        yield process.ask
