"""The items of one read, and what torch's default_collate makes of them."""

from __future__ import annotations

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
