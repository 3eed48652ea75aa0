"""The items of one read, and what torch's default_collate makes of them."""

from __future__ import annotations

import copy
import operator
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate  # noqa: E402

from stepwell.lerobot.items import Item, ItemRows  # noqa: E402


@pytest.fixture
def items() -> ItemRows:
    columns = {"x": torch.arange(6).reshape(3, 2), "task": ["a", "b", "c"], "y": [torch.zeros(2), torch.ones(2)] * 2}
    columns["y"] = columns["y"][:3]
    return ItemRows(columns, 3)


def test_items_are_dicts_of_views(items: ItemRows) -> None:
    assert len(items) == 3
    assert [item["task"] for item in items] == ["a", "b", "c"]
    assert items[-1]["x"].tolist() == [4, 5]
    assert [item["x"].tolist() for item in items[1:]] == [[2, 3], [4, 5]]
    assert items[1]["x"].untyped_storage().data_ptr() == items.columns["x"].untyped_storage().data_ptr()
    assert items[0] is items[0]


def test_an_item_is_a_dict() -> None:
    assert isinstance(Item(a=1), dict)
    assert Item(a=1) == {"a": 1}


def test_untouched_items_are_collated_without_a_copy(items: ItemRows) -> None:
    batch = default_collate(items)
    assert type(batch) is dict
    assert batch["x"] is items.columns["x"]
    assert batch["task"] == ["a", "b", "c"]
    assert batch["y"].shape == (3, 2)


def replace_first(items: ItemRows) -> Any:
    items[0]["x"] = torch.tensor([7, 7])
    return items


def add_to_all(items: ItemRows) -> Any:
    for item in items:
        item["x"] = item["x"] + 1
    return items


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (replace_first, [[7, 7], [2, 3], [4, 5]]),
        (add_to_all, [[1, 2], [3, 4], [5, 6]]),
        (lambda items: [items[2], items[0]], [[4, 5], [0, 1]]),
        (lambda items: [dict(item) for item in items], [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_items_that_were_changed_are_stacked_as_they_are(
    items: ItemRows, change: Callable[[ItemRows], Any], wanted: list[list[int]]
) -> None:
    assert default_collate(change(items))["x"].tolist() == wanted


def test_a_key_that_was_added_or_taken_away_is_seen(items: ItemRows) -> None:
    _ = items[0]
    for item in items:
        item["z"] = torch.tensor(1)
        del item["task"]
    batch = default_collate(items)
    assert list(batch) == ["x", "y", "z"]


def test_what_is_collated_equals_what_torch_stacks(items: ItemRows) -> None:
    stacked = default_collate([dict(item) for item in items])
    whole = default_collate(ItemRows(items.columns, 3))
    assert list(whole) == list(stacked)
    assert all(torch.equal(whole[key], stacked[key]) for key in ("x", "y"))
    assert whole["task"] == stacked["task"]


ACTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "add": lambda rows: operator.add(rows, [{"n": 9}]),
    "added to": lambda rows: operator.add([{"n": 9}], rows),
    "append": lambda rows: rows.append({"n": 9}),
    "compare": lambda rows: (rows == [{"n": 0}, {"n": 1}, {"n": 2}], rows != [], bool(rows)),
    "contains": lambda rows: ({"n": 1} in rows, {"n": 7} in rows, rows.index({"n": 2}), rows.count({"n": 2})),
    "copies": lambda rows: (rows.copy(), copy.copy(rows), copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))),
    "delete": lambda rows: rows.__delitem__(slice(0, 2)),
    "extend": lambda rows: rows.extend([{"n": 7}] * 2),
    "first, last": lambda rows: (rows[0], rows[-1], len(rows)),
    "insert": lambda rows: rows.insert(1, {"n": 9}),
    "iterate": lambda rows: (
        list(rows),
        tuple(rows),
        [*rows],
        sorted(rows, key=lambda row: -row["n"]),
        [*zip(rows, rows, strict=True)],
    ),
    "pop": lambda rows: (rows.pop(), rows.pop(0)),
    "repeat": lambda rows: (rows * 2, 2 * rows),
    "repr": repr,
    "reversed": lambda rows: ([*reversed(rows)], rows.reverse()),
    "set": lambda rows: rows.__setitem__(1, {"n": 9}),
    "shuffle": lambda rows: random.Random(0).shuffle(rows),
    "slice": lambda rows: (rows[:2], rows[::-1], rows[5:]),
    "sort": lambda rows: rows.sort(key=lambda row: -row["n"]),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_they_are_a_list(action: str, first: bool) -> None:
    rows, wanted = ItemRows({"n": [0, 1, 2]}, 3), [{"n": 0}, {"n": 1}, {"n": 2}]
    assert isinstance(rows, list)
    if first:
        assert rows[0] == {"n": 0}
    assert ACTIONS[action](rows) == ACTIONS[action](wanted)
    assert [*rows] == wanted
    assert len(rows) == len(wanted)
    if first and rows and rows[0]["n"] == 0:
        assert default_collate(rows)["n"].tolist() == [row["n"] for row in wanted]


def test_every_verb_of_lists_is_asked_to_fill_it_first() -> None:
    own = {"__init__", "__len__", "__getitem__", "__reduce_ex__", "__new__", "__doc__", "__hash__", "__getattribute__"}
    for name in vars(list).keys() - own - {"__class_getitem__", "__sizeof__"}:
        assert name in vars(ItemRows), name
