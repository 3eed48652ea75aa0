"""Gathering in one process; over real ranks see the end of this file and test_exact_ranks.py."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import LoaderError, OrderError
from stepwell.loader import Batch, BatchSampler, Loader, WindowDataset, gather_valid
from stepwell.store import Store

from .rank_processes import run_ranks


def batch_of(anchors: Any, valid: Any = None, **values: Any) -> Batch:
    return Batch(values, 4, 0, valid, np.array(anchors))


def test_rows_come_in_the_order_of_anchors_without_the_padding() -> None:
    first = batch_of([5, 1, 1], np.array([True, True, False]), x=np.array([50.0, 10, 11]), y=["f", "b", "?"])
    whole = gather_valid([first, batch_of([0], x=np.array([0.0]), y=("a",))])
    assert whole is not None
    assert (whole.anchors.tolist(), whole["x"].tolist(), whole["y"]) == ([0, 1, 5], [0.0, 10.0, 50.0], ["a", "b", "f"])
    assert (whole.epoch, whole.valid) == (4, None)


def test_one_batch_or_a_generator_will_do() -> None:
    batch = batch_of([1, 0], x=np.array([3, 4]))
    for given in (batch, [batch], (each for each in [batch])):
        whole = gather_valid(given, expected=2, to=0)
        assert whole is not None
        assert whole["x"].tolist() == [4, 3]


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("pad", [False, True, "wrap"])
def test_the_batches_of_all_ranks_are_the_whole_set(store: Store, numbers: list[int], order: Any, pad: Any) -> None:
    ranks = [
        batch.with_values({"number": batch["number"]})
        for rank in range(3)
        for batch in Loader(store, order=order, batch_size=5, pad=pad, rank=rank, world_size=3)
    ]
    whole = gather_valid(ranks, expected=len(numbers))
    assert whole is not None
    assert whole["number"].tolist() == numbers


def test_tensors_stay_tensors_of_their_dtype(store: Store, numbers: list[int]) -> None:
    torch = pytest.importorskip("torch")
    loader = Loader(store, {"number": "number"}, batch_size=5, pad="wrap", order="random", to="torch")
    weight = torch.ones(2, requires_grad=True)
    rows = (
        batch.with_values({"half": batch["number"].to(torch.bfloat16)[:, None] * weight.to(torch.bfloat16)})
        for batch in loader
    )
    whole = gather_valid(rows, expected=len(numbers))
    assert whole is not None
    assert (whole["half"].dtype, whole["half"].shape) == (torch.bfloat16, (37, 2))
    assert torch.equal(whole["half"][:, 1], torch.tensor(numbers).to(torch.bfloat16))
    assert not whole["half"].requires_grad


def test_batches_of_worker_processes_are_gathered_too(store: Store, numbers: list[int]) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = WindowDataset(store, {"number": "number"}, to="torch")
    sampler = BatchSampler(dataset, 5, pad=True, order="random")
    whole = gather_valid(
        data.DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate, num_workers=2),
        expected=sampler.num_positions,
    )
    assert whole is not None
    assert whole["number"].tolist() == numbers


def test_nothing_is_gathered_of_nothing() -> None:
    whole = gather_valid([], expected=0)
    assert whole is not None
    assert (dict(whole), whole.anchors.tolist()) == ({}, [])
    padded = gather_valid(batch_of([3], np.array([False]), x=np.array([1])))
    assert padded is not None
    assert (padded["x"].shape, padded.anchors.tolist()) == ((0,), [])


@pytest.mark.parametrize(
    ("batches", "expected", "message"),
    [
        ([batch_of([0, 1]), batch_of([1, 2])], None, "1 anchors came more than once: 1. Gather each epoch"),
        ([batch_of([0, 1, 5])], 8, "5 of 8 anchors did not come: 2, 3, 4, 6, 7"),
        ([batch_of(range(0, 40, 2))], 40, "20 of 40 anchors did not come: 1, 3, 5, 7, 9, 11, 13, 15, ..."),
        ([batch_of([0, 1, 2])], 2, "anchors 2 came, and 2 were expected"),
        ([batch_of([0, 1], x=[1])], None, "key 'x': 1 entries in a batch of 2 rows"),
        ([batch_of([0], x=np.float64(1))], None, "key 'x': a float64. Give an array"),
        ([batch_of([0], x=np.array(1.0))], None, "key 'x': a single value in a batch of 1 rows"),
        ([batch_of([0], x=np.zeros(1)), batch_of([1], x=np.zeros((1, 2)))], None, "key 'x': array float64"),
        ([batch_of([0], x=[1]), batch_of([1], y=[1])], None, "batches with keys"),
        ([Batch({"x": [1]})], None, "a Batch that does not know its anchors"),
        ([{"x": [1]}], None, "a dict that does not know its anchors"),
    ],
)
def test_what_cannot_be_gathered_is_refused_with_the_reason(batches: Any, expected: Any, message: str) -> None:
    with pytest.raises(LoaderError, match=re.escape(message)):
        gather_valid(batches, expected=expected)


def test_what_a_generator_raises_comes_through() -> None:
    def failing() -> Any:
        yield batch_of([0])
        raise ZeroDivisionError("the model")

    with pytest.raises(ZeroDivisionError, match="the model"):
        gather_valid(failing())


@pytest.mark.parametrize(("option", "value"), [("to", 1), ("to", -1), ("expected", -1), ("expected", 1.5)])
def test_numbers_out_of_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(OrderError, match=option):
        gather_valid([], **{option: value})


def test_gathering_arrays_does_not_load_torch() -> None:
    script = (
        "import sys, numpy as np; from stepwell.loader import Batch, gather_valid; "
        "gather_valid(Batch({'x': np.zeros(2)}, anchors=np.arange(2))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    pytest.importorskip("torch.distributed")
    return run_ranks(3, "exact_ranks:gather_in_many_ways", tmp_path_factory.mktemp("gather"))


@pytest.mark.slow
class TestRanks:
    """Real processes."""

    def test_all_ranks_get_equal_rows(self, found: list[dict[str, Any]]) -> None:
        assert {each["epoch"] for each in found} == {2}
        assert found[0]["tensors"] == found[1]["tensors"] == found[2]["tensors"]
        (dtype, half), (flag_dtype, flags) = found[0]["tensors"]
        assert (dtype, flag_dtype) == ("torch.bfloat16", "torch.bool")
        # anchor 3 * i + rank has row i of its rank
        assert half == [[2.0 * (n // 3) + n % 3, 2.0 * (n // 3) + 1 + n % 3] for n in range(7)]
        assert flags == [row[0] > 2 for row in half]

    def test_one_rank_gets_what_is_sent_to_it_alone(self, found: list[dict[str, Any]]) -> None:
        assert [each["to one"] for each in found] == [None, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], None]

    def test_a_rank_without_a_batch_gets_the_others(self, found: list[dict[str, Any]]) -> None:
        assert [each["without rows"] for each in found] == [([0, 1], {"x": [0.0, 1.0]})] * 3

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("missing", "2 of 9 anchors did not come: 7, 8"),
            ("beyond", "anchors 6 came"),
            ("twice", "3 anchors came more than once: 0, 1, 2"),
            ("kinds", "rank 1 gathers 'x': array float32"),
            ("keys", "rank 1 gathers 'x'"),
            ("to", "OrderError: to=3"),
        ],
    )
    def test_all_ranks_raise_alike(self, found: list[dict[str, Any]], name: str, message: str) -> None:
        assert found[0][name] == found[1][name] == found[2][name]
        assert message in found[0][name]

    @pytest.mark.parametrize(("name", "cause"), [("raised", "ZeroDivisionError: the model"), ("unpicklable", "")])
    def test_what_one_rank_raises_the_others_raise_too(
        self, found: list[dict[str, Any]], name: str, cause: str
    ) -> None:
        assert cause in found[1][name]
        assert "LoaderError" not in found[1][name]
        for rank in (0, 2):
            assert found[rank][name].startswith("LoaderError: rank 1 had nothing to gather: ")
            assert cause in found[rank][name]

    def test_a_rank_that_does_not_come_is_not_waited_for_without_end(self, tmp_path: Path) -> None:
        pytest.importorskip("torch.distributed")
        found = run_ranks(2, "exact_ranks:wait_for_one_that_sleeps", tmp_path / "run", str(tmp_path))
        assert "rank 0 of 2 waited for the others, and one did not answer" in found[0]

    def test_a_rank_that_dies_is_an_error_of_the_others(self, tmp_path: Path) -> None:
        pytest.importorskip("torch.distributed")
        found = run_ranks(3, "exact_ranks:die", tmp_path / "run", str(tmp_path), check=False)
        assert found[1] is None
        for rank in (0, 2):
            assert f"rank {rank} of 3 waited for the others, and one did not answer" in found[rank]
