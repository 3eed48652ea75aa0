"""Read a view in a way drawn at random, and compare every value, mask and anchor with the model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from stepwell import Field, Loader, View, WindowDataset, mixed, pooled, random, sequential, weighted
from stepwell.errors import OrderError, WindowError

from .features import COMBINED, assert_same, blank_of, tolerance_of, value_of
from .plain import Piece, PlainEpisode, PlainStore, anchors_of, window_of

COMPUTED = ("step_index", "is_first", "is_last", "terminated", "truncated")
OFFSETS: tuple[Any, ...] = (
    *(None, None, 0, 1, -1, -3, 2),
    *([0], [-1, 0], [0, 1, 2], [-2, 0, 3], [0, -1], [1, 1], [-3, -2], [2, 5]),
    *([[-2, -1], [-1, 0]], [[0, 4]], [-7, 7]),
)


def observe(plain: PlainStore, store: Any, names: Sequence[str]) -> list[Piece]:
    """Compare all that the episodes of a store say of themselves with the model; return what is shown."""
    episodes = list(store)
    told = [(each["key"][: each.length].tolist(), each.skipped, each.goes_on) for each in episodes]
    shown = plain.observe(told)
    assert (store.num_episodes, store.num_steps) == (len(shown), sum(each.end - each.begin for each in shown))
    for number, (found, piece) in enumerate(zip(episodes, shown, strict=True)):
        expected = piece.episode
        flags = found.terminated, found.truncated, found.interrupted
        assert found.has_final == (piece.stop(True) > piece.end), f"episode {number}"
        if piece.is_last:
            assert (flags, found.is_open) == (expected.flags, expected.is_open), f"episode {number}"
            assert found.metadata == expected.metadata, f"episode {number}"
        else:
            assert (flags, found.is_open) == ((False, False, False), False), f"episode {number}"
        for name in names:
            is_final = store.schema[name].final
            keys = expected.keys[piece.begin : piece.stop(is_final)]
            column = found[name]
            assert len(column) == len(keys), f"episode {number}: {len(column)} of {name}"
            for value, key in zip(column, keys, strict=True):
                assert_same(value, value_of(name, key), tolerance_of(name), f"episode {number}: {name} of step {key}")
    return shown


def make_fields(rng: Random, names: Sequence[str], finals: dict[str, bool]) -> dict[str, Field]:
    """Draw some fields; ``key`` at the anchor is always among them."""
    fields = {"here": Field("key")}
    for number in range(rng.randint(1, 4)):
        at = rng.choice(["anchor"] * 6 + ["final"])
        pad = rng.choice(["edge", "zero"] + ["drop"] * (at == "anchor"))
        offsets, source = rng.choice(OFFSETS), rng.choice([*names, *names, *COMPUTED])
        if at == "final" and source in COMPUTED:
            at = "anchor"
        combine = None
        if set(COMBINED) <= set(names) and finals[COMBINED[0]] == finals[COMBINED[1]] and rng.random() < 0.2:
            source, combine = COMBINED, rng.choice(["stack", "concat"])
        if at == "final" and any(each.at == "final" for each in fields.values()):
            at = "anchor"
        fields[f"f{number}"] = Field(source, offsets, pad=pad, combine=combine, at=at)
    return fields


class Expected:
    """What a view of the model holds under some fields."""

    def __init__(self, pieces: Sequence[Piece], fields: dict[str, Field], finals: dict[str, bool]) -> None:
        self.episodes = [piece.episode for piece in pieces]
        self.fields, self.finals = fields, finals
        self.anchors = anchors_of(pieces, fields, finals)

    def check(self, batch: Any) -> list[int]:
        """Compare a batch; returns the anchors that are valid."""
        anchors = batch.anchors.tolist()
        for key, field in self.fields.items():
            windows = [
                window_of(self.episodes[self.anchors[a][0]], self.anchors[a][1], field, self.finals) for a in anchors
            ]
            shape = (len(anchors), *field.window_shape)
            has_mask = field.pad != "drop" and field.offsets not in (None, 0)
            assert (f"{key}_is_pad" in batch) == has_mask, key
            if has_mask:
                mask = np.array([is_pad for _, is_pad in windows]).reshape(shape)
                assert np.array_equal(batch[f"{key}_is_pad"], mask), (
                    f"mask of {field}: {batch[f'{key}_is_pad']}, {mask}"
                )
            found = batch[key]
            assert found.shape[: len(shape)] == shape
            flat = found.reshape(-1, *found.shape[len(shape) :])
            cells = [
                (a, row, is_pad)
                for a, window in zip(anchors, windows, strict=True)
                for row, is_pad in zip(*window, strict=True)
            ]
            for value, (a, row, is_pad) in zip(flat, cells, strict=True):
                number, step = self.anchors[a]
                what = f"{field}, row {row} of episode {number} at its step {step}"
                expected = self.value(field, self.episodes[number], row, is_pad)
                assert_same(value, expected, max(map(tolerance_of, field.sources)), what)
        valid = [True] * len(anchors) if batch.valid is None else np.asarray(batch.valid).tolist()
        return [anchor for anchor, is_valid in zip(anchors, valid, strict=True) if is_valid]

    def value(self, field: Field, episode: PlainEpisode, row: int, is_pad: bool) -> Any:
        values = [self.one_value(name, episode, row, is_pad and field.pad == "zero") for name in field.sources]
        if field.combine is None:
            return values[0]
        return np.stack(values) if field.combine == "stack" else np.concatenate(values)

    def one_value(self, name: str, episode: PlainEpisode, row: int, is_zero: bool) -> Any:
        if name not in COMPUTED:
            return blank_of(name) if is_zero else value_of(name, episode.keys[row])
        if name == "step_index":
            return np.int64(0 if is_zero else row)
        is_last = row == episode.length - 1 and not episode.is_open
        marks = {
            "is_first": row == 0,
            "is_last": is_last,
            "terminated": is_last and episode.flags[0],
            "truncated": is_last and episode.flags[1],
        }
        return np.bool_(marks[name] and not is_zero)


def read(rng: Random, views: Sequence[tuple[Any, list[Piece]]], names: Sequence[str], notes: list[str]) -> None:
    """Read stores together, each with what it shows, in a way that ``rng`` draws."""
    finals = {name: views[0][0].schema[name].final for name in names}
    fields = make_fields(rng, names, finals)
    expected = Expected([piece for _, shown in views for piece in shown], fields, finals)
    view = View([store for store, _ in views])
    settings = {
        "batch_size": rng.randint(1, 9),
        "threads": rng.choice([0, 0, 1, 2]),
        "prefetch": rng.randint(1, 3),
        "page_cache": rng.random() < 0.6,
    }
    notes.append(f"fields={fields} {settings}")
    try:
        whole = Loader(view, fields, **settings)
    except WindowError as error:
        assert not expected.anchors, f"{error}, and there are {len(expected.anchors)} anchors"
        return
    assert whole.num_positions == len(expected.anchors)
    part_sizes = [len(anchors_of(shown, fields, finals)) for _, shown in views]
    how = rng.choice(["sequential", "random", "pooled", "pooled", "weighted", "mixed", "dataset"])
    notes.append(how)
    if how == "dataset":
        read_dataset(rng, view, expected, settings["page_cache"])
    elif how == "weighted":
        read_weighted(rng, view, expected, settings)
    elif how == "mixed":
        read_mixed(rng, view, expected, part_sizes, [len(shown) for _, shown in views], settings)
    else:
        read_once(rng, view, expected, how, settings, notes)


def read_once(
    rng: Random, view: View, expected: Expected, how: str, settings: dict[str, Any], notes: list[str]
) -> None:
    """Read in an order that visits each anchor once an epoch, by one rank or several, and resume one of them."""
    order: Any = {"sequential": sequential(), "random": random(rng.randint(0, 99))}.get(how)
    if how == "pooled":
        order = make_pool(rng, view, expected)
    world, epochs = rng.choice([1, 1, 2, 3, 5]), rng.choice([1, 1, 2])
    pad, drop_last = rng.choice([(False, False)] * 3 + [(False, True), (True, False), ("wrap", False)])
    settings = {**settings, "order": order, "world_size": world, "epochs": epochs, "pad": pad, "drop_last": drop_last}
    notes.append(f"{settings}")
    if drop_last and len(expected.anchors) < world * settings["batch_size"]:
        with pytest.raises(OrderError, match="no batches"):
            list(Loader(view, expected.fields, **settings))
        return
    per_epoch: list[list[int]] = [[] for _ in range(epochs)]
    counts = []
    for rank in range(world):
        loader = Loader(view, expected.fields, **settings, rank=rank)
        batches = list(loader)
        assert len(batches) == len(loader)
        counts.append(len(batches))
        for batch in batches:
            per_epoch[batch.epoch] += expected.check(batch)
        if rank == 0 and batches:
            taken = rng.randint(0, len(batches))
            again = resumed(rng, view, expected, {**settings, "rank": rank}, taken)
            found = [batch.anchors.tolist() for batch in again]
            assert found == [batch.anchors.tolist() for batch in batches[taken:]], f"resumed after {taken} batches"
            for batch in again:
                expected.check(batch)
    everything = list(range(len(expected.anchors)))
    global_batch = world * settings["batch_size"]
    for anchors in per_epoch:
        if drop_last:
            assert len(anchors) == len(set(anchors)) == len(everything) // global_batch * global_batch
        else:
            assert sorted(anchors) == everything
        if how == "sequential" and world == 1:
            assert anchors == everything[: len(anchors)]
    if pad or drop_last:
        assert len(set(counts)) == 1


def resumed(rng: Random, view: View, expected: Expected, settings: dict[str, Any], taken: int) -> list[Any]:
    """Take some batches, and the rest from another loader that was given the state."""
    loader = Loader(view, expected.fields, **settings)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    other = Loader(
        view, expected.fields, **{**settings, "threads": rng.choice([0, 1, 2]), "page_cache": rng.random() < 0.5}
    )
    other.load_state_dict(state)
    return list(other)


def make_pool(rng: Random, view: View, expected: Expected) -> Any:
    """Draw a pool, from the smallest that is possible to one that holds everything."""
    blocks = rng.choice([None, None, 4, 7])
    settings = {"seed": rng.randint(0, 99), "blocks": blocks, "shards": rng.random() < 0.2}
    order = pooled(rng.choice([1, 1000, 20_000, 1 << 24]), **settings)
    try:
        Loader(view, expected.fields, order=order)
    except OrderError as error:
        (needed,) = re.findall(r"pooled\(bytes=(\d+)\)", str(error))
        order = pooled(int(needed), **settings)
    return order


def read_weighted(rng: Random, view: View, expected: Expected, settings: dict[str, Any]) -> None:
    weights = [rng.choice([0, 1, 1, 2.5]) for _ in expected.episodes]
    steps = [rng.choice([0, 1, 3]) for _ in expected.anchors] if rng.random() < 0.5 else None
    dropped = rng.choice([0, 0, 1, 3])
    per: Any = rng.choice(["step", "episode"])
    ends = Counter(number for number, _ in expected.anchors)
    starts = {number: next(i for i, (n, _) in enumerate(expected.anchors) if n == number) for number in ends}
    allowed = {
        anchor
        for anchor, (number, _) in enumerate(expected.anchors)
        if weights[number] and (steps is None or steps[anchor]) and anchor < starts[number] + ends[number] - dropped
    }
    try:
        order = weighted(episodes=weights, steps=steps, per=per, seed=rng.randint(0, 9), drop_last_steps=dropped)
        batches = list(Loader(view, expected.fields, order=order, **settings))
    except OrderError as error:
        assert not allowed, error
        return
    anchors = [anchor for batch in batches for anchor in expected.check(batch)]
    assert len(anchors) == len(expected.anchors)
    assert set(anchors) <= allowed


def read_mixed(
    rng: Random, view: View, expected: Expected, sizes: list[int], num_episodes: list[int], settings: dict[str, Any]
) -> None:
    weights = [rng.choice([1, 2, 0.5]) if size else 0 for size in sizes]
    ends = np.cumsum([0, *sizes]).tolist()
    orders: list[Any] = [
        rng.choice([sequential(), random(3), weighted(episodes=[1] * count, per="episode", seed=4)])
        for count in num_episodes
    ]
    if not any(weights):
        return
    order = mixed(weights, order=orders, seed=rng.randint(0, 9))
    batches = list(Loader(view, expected.fields, order=order, **settings))
    anchors = [anchor for batch in batches for anchor in expected.check(batch)]
    assert len(anchors) == len(expected.anchors)
    for part, walk in enumerate(orders):
        own = [anchor - ends[part] for anchor in anchors if ends[part] <= anchor < ends[part + 1]]
        assert bool(weights[part]) or not own
        whole = own[: len(own) // max(sizes[part], 1) * sizes[part]]
        if walk == sequential():
            assert own == [number % sizes[part] for number in range(len(own))]
        elif walk == random(3):
            # pass after pass, each whole before the next begins
            for begin in range(0, len(whole), max(sizes[part], 1)):
                assert sorted(whole[begin : begin + sizes[part]]) == list(range(sizes[part]))


def read_dataset(rng: Random, view: View, expected: Expected, page_cache: bool) -> None:
    dataset = WindowDataset(view, expected.fields, page_cache=page_cache)
    assert len(dataset) == len(expected.anchors)
    if not len(dataset):
        return
    chosen = [rng.randrange(len(dataset)) for _ in range(rng.randint(1, 12))]
    batch = dataset.collate(dataset.__getitems__(chosen))
    assert expected.check(batch) == chosen
    sample = dataset[chosen[0]]
    assert_same(sample["here"], expected.value(expected.fields["here"], *_place(expected, chosen[0]), False), 0, "here")


def _place(expected: Expected, anchor: int) -> tuple[PlainEpisode, int]:
    number, step = expected.anchors[anchor]
    return expected.episodes[number], step
