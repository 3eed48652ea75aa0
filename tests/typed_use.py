"""What a type checker says of a user's code: mypy reads this file in ``make check``, and nothing here ever runs.

Every typo has a ``type: ignore`` with the error that it should be; mypy reports one that it did not need.
"""

from __future__ import annotations

from typing import assert_type

import numpy as np
import numpy.typing as npt

import stepwell
from stepwell import Array, Batch, Field, Loader, ReplayLoader, Table, View

Numbers = npt.NDArray[np.float32]


def right(store: stepwell.Store) -> None:
    """Whatever pages do has no error."""
    view = View(store).select(where={"success": True})
    fields = {"state": range(8), "speed": Field("state", [-1, 0])}
    loader = Loader(view, fields, batch_size=4, order=stepwell.random(seed=1))
    for batch in loader:
        state: Numbers = batch["state"]
        assert_type(batch.epoch, int)
        assert_type(loss(batch, state), float)
    for nested in Loader(view, nested=True):
        print(nested["observation"]["image"])
    table = Table.queue(store, seed=3)
    for drawn in ReplayLoader(table, batch_size=3):
        table.update_priorities(drawn["table.key"], drawn["reward"].max(axis=-1))
    with stepwell.open("walk.well", mode="r") as other:
        print(other.statistics()["state"].mean, other[0]["state"].shape, other[0].length)
    print(stepwell.lerobot.LeRobotDataset, stepwell.transforms.RandomCrop, stepwell.testing.tiny_store)


def loss(batch: Batch, state: Numbers) -> float:
    return float(batch["state"].mean() + state.mean())


def typos_in_names(store: stepwell.Store) -> None:
    from stepwell.lerobot import LeRobotDatset  # type: ignore[attr-defined]

    print(LeRobotDatset, stepwell.lerobot.LeRobotDatset)  # type: ignore[attr-defined]
    stepwell.opne("walk.well")  # type: ignore[attr-defined]
    print(store.num_epsiodes)  # type: ignore[attr-defined]
    print(store[0].lenght)  # type: ignore[attr-defined]
    View(store).selct()  # type: ignore[attr-defined]
    print(stepwell.transforms.RandomCorp)  # type: ignore[attr-defined]
    print(store.statistics()["state"].meen)  # type: ignore[attr-defined]
    batch = next(iter(Loader(store)))
    print(batch.anchor)  # type: ignore[attr-defined]
    print(batch["state"].meen())  # type: ignore[attr-defined]
    print(next(ReplayLoader(store))["state"].meen())  # type: ignore[attr-defined]


def typos_in_arguments(store: stepwell.Store) -> None:
    stepwell.create("walk.well", {"state": Array(3)}, fsp=10)  # type: ignore[call-arg]
    Loader(store, batchsize=3)  # type: ignore[call-overload]
    Loader(store, order="radnom")  # type: ignore[call-overload]
    ReplayLoader(store, batchsize=3)  # type: ignore[call-overload]
    Table(store, max_sise=3)  # type: ignore[call-arg]
    Table.queue(store, sede=3)  # type: ignore[call-arg]
    Field("state", offset=3)  # type: ignore[call-arg]
    stepwell.Video((64, 64, 3), gopp=3)  # type: ignore[arg-type]
