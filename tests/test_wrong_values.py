"""Values of a wrong kind, as one mistypes them, are refused in words: no error of the inside reaches the user."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Image, StepwellError, View


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    store = stepwell.create(tmp_path / "a.well", {"state": Array(2, final=True)})
    with store.writer() as writer:
        for _ in range(3):
            writer.add_episode({"state": np.zeros((4, 2), np.float32)}, terminated=True)
    return store


def end_with_array(store: stepwell.Store) -> Any:
    with store.writer() as writer:
        writer.append(state=[0.0, 0.0])
        return writer.end_episode(final=np.zeros(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        (lambda store: stepwell.create(store.path / "x.well", fps="ten"), "fps='ten' is not a rate"),
        (lambda store: View(store).split([0.9, 0.1]), r"Give one for each part: split\(0.9, 0.1\)"),
        (lambda store: View(store).select(where=3), "where=3 is no condition. Give a text"),
        (lambda store: store.statistics("state"), "episodes 'state' are no indices"),
        (lambda store: store.statistics(episodes=[3]), "no episode 3"),
        (lambda store: stepwell.concatenate(store.path.parent / "b.well", [str(store.path)]), "Open it first"),
        (lambda store: Image((3, 32, 48)), r"Channels come last: \(32, 48, 3\)\."),
        (end_with_array, "final=ndarray. Give a mapping"),
    ],
)
def test_a_wrong_value_is_refused_in_words(
    store: stepwell.Store, attempt: Callable[[stepwell.Store], Any], told: str
) -> None:
    with pytest.raises(StepwellError, match=told):
        attempt(store)


def test_a_closed_store_says_that_it_is_closed(store: stepwell.Store) -> None:
    assert store.statistics(episodes=1)["state"].count.tolist() == [4, 4]
    store.close()
    with pytest.raises(StepwellError, match="was closed: open it again"):
        store[0]
    store.refresh()
    assert store[0].length == 4
