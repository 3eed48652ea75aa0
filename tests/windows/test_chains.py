"""Windows of an episode that a ring cut in pieces are those of the whole episode, as far as the ring shows it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Image, Loader, Order, View, WindowDataset
from stepwell.order import pooled
from stepwell.transforms import RandomCrop, Resize
from stepwell.windows.chains import linked

OFFSETS = [-7, -2, -1, 0, 1, 3, 3, 6]
SHAPE = (4, 4, 3)
SCHEMA = {
    "k": Array((), "int64"),
    "pair": Array(2, "int32", final=True),
    "zstd": Array(3, "int64", codec="zstd"),
    "delta": Image(SHAPE, codec="delta", every=5, final=True),
    "png": Image(SHAPE, codec="png"),
    "text": stepwell.Text(),
}
POOLED = pooled(bytes="300 KB", blocks=4)


def row_of(number: int) -> dict[str, Any]:
    return {
        "k": number,
        "pair": np.full(2, number, np.int32),
        "zstd": np.full(3, number),
        "delta": np.full(SHAPE, number % 251, np.uint8),
        "png": np.full(SHAPE, number % 241, np.uint8),
        "text": f"step {number}",
    }


def final_of(number: int) -> dict[str, Any]:
    return {name: row_of(number)[name] for name, feature in SCHEMA.items() if feature.final}


def number_of(name: str, value: Any) -> Any:
    """Return the numbers that values of a feature stand for, each by its first element."""
    if name == "text":
        return np.vectorize(lambda text: int(text.split()[1]) if text else 0)(value)
    return value if name == "k" else value.reshape(*value.shape[: value.ndim - len(SCHEMA[name].shape)], -1)[..., 0]


class Model:
    """What was recorded, as plain lists: numbers of steps of each episode, in thousands by episode."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.has_final: dict[int, bool] = {}
        self.is_open: dict[int, bool] = {}

    def shown(self, store: Any) -> dict[int, tuple[int, int]]:
        """Return the first and the last number + 1 that is shown of each episode, by the store's own raw column."""
        found: dict[int, list[int]] = {}
        for episode in store:
            numbers = episode["k"]
            found.setdefault(int(numbers[0]) // 1000, []).extend(numbers.tolist())
        for number, steps in found.items():
            assert steps == list(range(steps[0], steps[-1] + 1)), "a ring shows the end of an episode"
            assert steps[-1] == 1000 * number + self.lengths[number] - 1
        return {number: (steps[0], steps[-1] + 1) for number, steps in found.items()}


def record(store: Any, lengths: list[int], model: Model, *, num_writers: int = 1, close: bool = True) -> list[Any]:
    """Write episodes, by turns a few steps each; the last ones stay open unless they are closed."""
    writers = [store.writer() for _ in range(num_writers)]
    left = list(enumerate(lengths))
    under_way: list[tuple[int, int] | None] = [None] * num_writers
    while left or any(under_way):
        for i, writer in enumerate(writers):
            if under_way[i] is None and left:
                under_way[i] = left.pop(0)
                model.lengths[under_way[i][0]] = 0  # type: ignore[index]
            if under_way[i] is None:
                continue
            number, length = under_way[i]  # type: ignore[misc]
            for _ in range(min(5, length - model.lengths[number])):
                writer.append(**row_of(1000 * number + model.lengths[number]))
                model.lengths[number] += 1
            if model.lengths[number] == length:
                under_way[i] = None
                model.is_open[number] = not close and not left
                if not model.is_open[number]:
                    model.has_final[number] = number % 2 == 0
                    final = final_of(1000 * number + length) if model.has_final[number] else None
                    writer.end_episode(terminated=number % 3 == 0, final=final)
    for writer in writers:
        writer.close() if close else writer.flush()
    store.refresh()
    return writers


def expect(number: int, name: str, pad: str, bounds: tuple[int, int], has_final: bool) -> tuple[list[int], list[bool]]:
    first, stop = bounds
    stop += has_final and SCHEMA[name].final
    values, mask = [], []
    for offset in OFFSETS:
        wanted = number + offset
        inside = min(max(wanted, first), stop - 1)
        mask.append(wanted != inside)
        modulus = {"delta": 251, "png": 241}.get(name, 10**9)
        values.append(0 if wanted != inside and pad == "zero" else inside % modulus)
    return values, mask


def check_batch(batch: Any, pads: dict[str, str], model: Model, shown: dict[int, tuple[int, int]]) -> None:
    for i, number in enumerate(batch["anchor"].tolist()):
        episode = number // 1000
        first, stop = shown[episode]
        for name, pad in pads.items():
            values, mask = expect(number, name, pad, shown[episode], model.has_final.get(episode, False))
            assert number_of(name, batch[name])[i].tolist() == values, (name, number)
            if pad != "drop":
                assert batch[f"{name}_is_pad"][i].tolist() == mask, (name, number)
        steps = [min(max(number + offset, first), stop - 1) for offset in OFFSETS]
        assert batch["step_index"][i].tolist() == [step - 1000 * episode for step in steps]
        assert batch["is_first"][i].tolist() == [step == 1000 * episode for step in steps]
        is_end = [step == stop - 1 and not model.is_open[episode] for step in steps]
        assert batch["is_last"][i].tolist() == is_end
        assert batch["terminated"][i].tolist() == [end and episode % 3 == 0 for end in is_end]


def anchors_of(model: Model, shown: dict[int, tuple[int, int]], pads: dict[str, str]) -> list[int]:
    found: list[int] = []
    is_dropped = "drop" in pads.values()
    for episode, (first, stop) in shown.items():
        head = -min(OFFSETS) if is_dropped else 0
        tail = max(OFFSETS) if is_dropped or model.is_open[episode] else 0
        found += range(first + head, stop - tail)
    return sorted(found)


def fields_of(pads: dict[str, str]) -> dict[str, Any]:
    computed = {name: Field(name, OFFSETS) for name in ("step_index", "is_first", "is_last", "terminated", "step_id")}
    return {
        "anchor": "k",
        "id": "step_id",
        **computed,
        **{name: Field(name, OFFSETS, pad=pad) for name, pad in pads.items()},
    }


PADS = [
    {"k": "edge", "pair": "zero", "zstd": "edge", "delta": "edge", "png": "zero", "text": "zero"},
    {"k": "zero", "pair": "edge", "delta": "zero", "png": "edge", "text": "edge", "zstd": "zero"},
    {"k": "drop", "pair": "edge", "delta": "edge"},
]


@pytest.mark.parametrize("num_writers", [1, 3])
@pytest.mark.parametrize("close", [True, False], ids=["ended", "open"])
def test_windows_over_pieces_are_those_of_the_whole_episode(tmp_path: Path, num_writers: int, close: bool) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=150, segment_bytes=1500)
    model = Model()
    writers = record(store, [3, 60, 1, 80, 7, 40, 33], model, num_writers=num_writers, close=close)
    assert any(episode.goes_on for episode in store)
    shown = model.shown(store)
    ids = {int(episode["k"][i]): episode.first_step_id + i for episode in store for i in range(episode.length)}
    settings: list[tuple[str | Order, bool, int]] = [
        ("sequential", True, 0),
        ("random", True, 2),
        (POOLED, True, 0),
        (POOLED, False, 2),
        ("random", False, 0),
    ]
    for number, (order, page_cache, threads) in enumerate(settings):
        for pads in (PADS[number % 2], PADS[2]):
            loader: Any = Loader(
                store, fields_of(pads), batch_size=16, order=order, page_cache=page_cache, threads=threads
            )
            seen: list[int] = []
            for batch in loader:
                check_batch(batch, pads, model, shown)
                assert [ids[k] for k in batch["anchor"].tolist()] == batch["id"].tolist()
                k = batch["anchor"][:, None] + OFFSETS
                bounds = np.array([shown[number // 1000] for number in batch["anchor"].tolist()])
                steps = np.clip(k, bounds[:, :1], bounds[:, 1:] - 1)
                assert np.array_equal(batch["step_id"], np.vectorize(ids.get)(steps))
                seen += batch["anchor"].tolist()
            assert sorted(seen) == anchors_of(model, shown, pads)
    dataset = WindowDataset(store, fields_of(PADS[0]))
    check_batch(dataset.collate(dataset.__getitems__(range(len(dataset)))), PADS[0], model, shown)
    for writer in writers:
        writer.close()


def test_linked_pieces_follow_each_other() -> None:
    # twice the same episode, as a store that was concatenated twice has it; and one whose second piece is gone
    origins, firsts, ends = [5, 5, 5, 5, 8, 8], [0, 4, 0, 4, 0, 9], [4, 7, 4, 7, 5, 12]
    goes_on = [True, False, True, False, True, False]
    assert linked(origins, firsts, ends, goes_on).tolist() == [0, 0, 1, 1, 2, 3]


def test_a_view_of_one_piece_reads_into_the_others(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=500, segment_bytes=1500)
    model = Model()
    record(store, [90], model)
    assert len(store) >= 3
    first = store[0].length
    view = View(store).select(1)
    batch = next(iter(Loader(view, fields_of(PADS[0]), batch_size=1000)))
    assert batch["anchor"].tolist() == list(range(first, first + store[1].length))
    check_batch(batch, PADS[0], model, {0: (0, 90)})


def test_windows_elsewhere_in_the_episode_may_lie_in_any_piece(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=70, segment_bytes=1500)
    record(store, [90], Model())
    fields = {
        "anchor": "k",
        **{f"{at} {name}": Field(name, [-1, 0, 1], at=at) for at in ("future", "final", "episode") for name in SCHEMA},
        "future index": Field("step_index", [0], at="future"),
    }
    for batch in Loader(store, fields, batch_size=70):
        for at in ("future", "final", "episode"):
            placed = number_of("k", batch[f"{at} k"])
            middle = placed[:, 1]
            assert np.array_equal(placed, np.clip(middle[:, None] + [-1, 0, 1], 20, 89))
            for name in ("zstd", "png", "text"):
                assert np.array_equal(number_of(name, batch[f"{at} {name}"]), placed)
            rows = number_of("delta", batch[f"{at} delta"])
            assert np.array_equal(rows, number_of("pair", batch[f"{at} pair"]))
        assert (batch["final k"][:, 1] == 89).all()
        assert ((batch["future k"][:, 1] > batch["anchor"]) | (batch["anchor"] == 89)).all()
        # of several pieces
        assert np.ptp(batch["episode k"][:, 1]) > 50
        assert np.array_equal(batch["future index"][:, 0], batch["future k"][:, 1])


def test_decoders_and_joined_features_read_over_pieces(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=70, segment_bytes=1500, fps=10)
    record(store, [90], Model())
    fields = {
        "anchor": "k",
        "small": Field("png", OFFSETS, decoder=Resize((2, 2))),
        "drawn": Field("delta", OFFSETS, decoder=RandomCrop(2)),
        "both": Field(("k", "step_index"), OFFSETS, combine="stack"),
        "time": Field("timestamp", OFFSETS),
    }
    for order in ("random", POOLED):
        for batch in Loader(store, fields, batch_size=32, order=order):
            wanted = np.clip(batch["anchor"][:, None] + OFFSETS, 20, 89)
            assert np.array_equal(batch["small"][..., 0, 0, 0], wanted)
            assert np.array_equal(batch["drawn"][..., 0, 0, 0], np.clip(batch["anchor"][:, None] + OFFSETS, 20, 90))
            assert np.array_equal(batch["both"], np.stack([wanted, wanted], axis=-1))
            assert np.allclose(batch["time"], wanted / 10)


def test_a_window_that_is_valid_never_changes_while_a_ring_grows(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=1000, segment_bytes=1500)
    fields = {"anchor": "k", "k": Field("k", OFFSETS), "next": Field("delta", [0, 1])}
    known: dict[int, Any] = {}
    reader = stepwell.open(store.path, mode="r")
    with store.writer() as writer:
        for number in range(120):
            writer.append(**row_of(number))
            reader.refresh()
            if number < 10 or number % 3:
                continue
            (batch,) = Loader(reader, fields, batch_size=1000)
            assert batch["anchor"].tolist() == list(range(number - 5))
            for i, anchor in enumerate(batch["anchor"].tolist()):
                row = batch["k"][i].tolist(), batch["k_is_pad"][i].tolist(), batch["next"][i, :, 0, 0, 0].tolist()
                assert known.setdefault(anchor, row) == row
    assert len(store) > 5
