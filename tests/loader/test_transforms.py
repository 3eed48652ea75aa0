from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from stepwell import Loader, Store, WindowDataset
from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.loader.transforms import BatchKey, TransformChain
from stepwell.order import pooled
from stepwell.order.ranks import RankSpan, Share
from stepwell.transforms.base import BatchTransform, Together, Transform
from stepwell.transforms.fusing import Stage
from stepwell.windows import Field


def key_at(seed: int, epoch: int, start: int, size: int = 2) -> BatchKey:
    return BatchKey(seed, ((epoch, range(start, start + size)),), size)


KEY = key_at(seed=3, epoch=1, start=64)


class Jitter(Transform):
    """Add one number a window."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key

    def output(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
        return shape, np.dtype(np.float64)

    def __call__(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        return values + draws.uniform().reshape(-1, *[1] * (values.ndim - 1))


class OnlyPairs(Transform):
    """Refuse windows that are no pairs, and take the first of each."""

    def output(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
        if shape[:1] != (2,):
            raise WindowError(f"{shape} is no pair.")
        return shape[1:], dtype

    def __call__(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        return values[:, 0]


class Swap(BatchTransform):
    """Swap a and b."""

    def outputs(self, samples: dict) -> dict:
        return {**samples, "a": samples["b"], "b": samples["a"]}

    def __call__(self, batch: dict, draws: Draws) -> dict:
        return {**batch, "a": batch["b"], "b": batch["a"]}


def add_noise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array + rng.random(array.shape)


def test_field_transforms_run_in_order_before_the_loaders() -> None:
    chain = TransformChain({"a": (lambda x: x + 1, lambda x: x * 10)}, lambda batch: {"b": batch["a"] - 1})
    assert chain.apply({"a": np.array([1.0])}, KEY)["b"].tolist() == [19.0]


def test_numbers_depend_on_seed_epoch_and_start_only() -> None:
    chain = TransformChain({"a": (add_noise,)})

    def drawn(key: BatchKey) -> float:
        return float(chain.apply({"a": np.zeros(1)}, key)["a"][0])

    assert drawn(KEY) == drawn(key_at(3, 1, 64))
    keys = [KEY, key_at(4, 1, 64), key_at(3, 2, 64), key_at(3, 1, 65), key_at(1, 3, 64)]
    assert len({drawn(key) for key in keys}) == len(keys)


def test_each_transform_has_numbers_of_its_own_whatever_others_there_are() -> None:
    one = TransformChain({"a": (add_noise,)}).apply({"a": np.zeros(2)}, KEY)
    more = TransformChain({"b": (add_noise, add_noise), "a": (add_noise,)})
    two = more.apply({"a": np.zeros(2), "b": np.zeros(2)}, KEY)
    assert one["a"].tolist() == two["a"].tolist()
    assert one["a"].tolist() != two["b"].tolist()


def test_an_exception_names_the_key_and_the_transform() -> None:
    def crop(array: np.ndarray) -> np.ndarray:
        raise ValueError("too small")

    with pytest.raises(LoaderError, match=r"crop of field 'image' raised ValueError: too small") as caught:
        TransformChain({"image": (crop,)}).apply({"image": np.zeros(1)}, KEY)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(LoaderError, match=r"crop of the loader"):
        TransformChain({}, crop).apply({}, KEY)


def test_a_field_transform_that_returns_nothing_is_told_so() -> None:
    def in_place(array: np.ndarray) -> None:
        array += 1

    with pytest.raises(LoaderError, match=r"in_place of field 'a' returned None"):
        TransformChain({"a": (in_place,)}).apply({"a": np.zeros(1)}, KEY)


def test_a_loader_transform_that_returns_nothing_is_told_so() -> None:
    with pytest.raises(LoaderError, match="returned a NoneType"):
        TransformChain({}, lambda batch: None).apply({}, KEY)


def test_numba_compiled_and_builtin_functions_are_simply_called() -> None:
    numba = pytest.importorskip("numba")

    @numba.njit(nogil=True)
    def double(array):
        return array * 2

    @numba.njit(nogil=True)
    def jitter(array, rng):
        return array + rng.random()

    chain = TransformChain({"a": (double, np.negative), "b": (jitter,)})
    found = chain.apply({"a": np.arange(3.0), "b": np.zeros(2)}, KEY)
    assert found["a"].tolist() == [0.0, -2.0, -4.0]
    assert 0 < found["b"][0] == found["b"][1]


def test_an_rng_of_the_users_own_is_left_alone() -> None:
    own = np.random.Generator(np.random.Philox(1))
    found = TransformChain({"a": (partial(add_noise, rng=own),)}).apply({"a": np.zeros(2)}, KEY)
    assert found["a"].tolist() == np.random.Generator(np.random.Philox(1)).random(2).tolist()


def test_a_callable_object_may_want_numbers_too() -> None:
    class Shaker:
        def __call__(self, array: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
            return array + rng.random()

    assert TransformChain({"a": (Shaker(),)}).apply({"a": np.zeros(1)}, KEY)["a"][0] > 0


def zeros(size: int) -> dict[str, np.ndarray]:
    return {"a": np.zeros(size), "b": np.zeros(size)}


def test_the_numbers_of_a_window_do_not_depend_on_its_batch() -> None:
    chain = TransformChain({"a": (Jitter(),), "b": (lambda values, draws: values + draws.uniform(),)})
    whole = chain.apply(zeros(6), key_at(0, 0, 10, 6))
    halves = [chain.apply(zeros(3), key_at(0, 0, start, 3)) for start in (10, 13)]
    for key in "ab":
        assert whole[key].tolist() == np.concatenate([half[key] for half in halves]).tolist()
    assert len({*whole["a"], *whole["b"]}) == 12


def test_a_batch_that_crosses_into_another_epoch_draws_as_each_epoch_does() -> None:
    crossing = BatchKey.of(5, Share((RankSpan(0, 8, 2), RankSpan(1, 0, 3)), 5)).draws("x").uniform()
    apart = [key_at(5, 0, 8, 2).draws("x").uniform(), key_at(5, 1, 0, 3).draws("x").uniform()]
    assert crossing.tolist() == np.concatenate(apart).tolist()


def test_rows_that_fill_up_a_batch_draw_as_the_last_one() -> None:
    drawn = BatchKey.of(5, Share((RankSpan(0, 8, 2),), 4)).draws("x").uniform()
    assert len(drawn) == 4
    assert drawn[1] == drawn[2] == drawn[3] != drawn[0]


def test_transforms_of_one_key_draw_the_same_in_all_fields() -> None:
    same = TransformChain({"a": (Jitter("k"),), "b": (np.negative, Jitter("k"))}).apply(zeros(3), key_at(0, 0, 0, 3))
    assert same["a"].tolist() == same["b"].tolist()
    other = TransformChain({"a": (Jitter("k"),), "b": (Jitter("l"),)}).apply(zeros(3), key_at(0, 0, 0, 3))
    assert not set(other["a"]) & set(other["b"])


def test_together_does_the_same_to_several_keys() -> None:
    chain = TransformChain({}, Together(("a", "b"), Jitter()))
    found = chain.apply({**zeros(3), "c": np.zeros(3)}, key_at(0, 0, 0, 3))
    assert found["a"].tolist() == found["b"].tolist()
    assert len(set(found["a"])) == 3
    assert not found["c"].any()


def test_several_transforms_of_the_loader_run_in_order() -> None:
    chain = TransformChain({}, [lambda batch: {**batch, "a": batch["a"] + 1}, Swap()])
    found = chain.apply(zeros(2), KEY)
    assert (found["a"].tolist(), found["b"].tolist()) == ([0, 0], [1, 1])


def test_a_chain_is_checked_before_there_is_a_batch() -> None:
    samples = {"a": ((2, 3), np.dtype("f8")), "b": ((4, 3), np.dtype("f8"))}
    TransformChain({"a": (OnlyPairs(),)}, samples=samples)
    with pytest.raises(WindowError, match=r"field 'b', transform OnlyPairs: \(4, 3\) is no pair"):
        TransformChain({"b": (OnlyPairs(),)}, samples=samples)
    with pytest.raises(WindowError, match=r"field 'a', transform OnlyPairs: \(3,\) is no pair"):
        TransformChain({"a": (OnlyPairs(), OnlyPairs())}, samples=samples)
    with pytest.raises(WindowError, match=r"Together of the loader: \(4, 3\) is no pair"):
        TransformChain({}, [Swap(), Together("a", OnlyPairs())], samples)
    with pytest.raises(WindowError, match=r"Together wants key 'c'. The batch has: a, b"):
        TransformChain({}, Together("c", OnlyPairs()), samples)


def test_transforms_that_are_fused_draw_as_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_by_two(functions: tuple, shape: tuple[int, ...], dtype: np.dtype) -> list[Stage]:
        return [Stage(first, tuple(functions[first : first + 2])) for first in range(0, len(functions), 2)]

    fields = {"a": (Jitter(), Jitter("k"), Jitter("l"), Jitter())}
    alone = TransformChain(fields).apply(zeros(3), key_at(0, 0, 0, 3))["a"]
    monkeypatch.setattr("stepwell.loader.transforms.fuse", two_by_two)
    chain = TransformChain(fields, samples={"a": ((), np.dtype("f8"))})
    assert chain.apply(zeros(3), key_at(0, 0, 0, 3))["a"].tolist() == alone.tolist()
    with pytest.raises(LoaderError, match=r"transform Jitter \+ Jitter of field 'a' raised"):
        chain.apply({"a": None}, KEY)


def test_what_follows_a_plain_function_is_not_checked() -> None:
    samples = {"a": ((4, 3), np.dtype("f8"))}
    TransformChain({"a": (lambda values: values[:, :2], OnlyPairs())}, Together("a", OnlyPairs()), samples)
    TransformChain({}, [lambda batch: batch, Together("a", OnlyPairs())], samples)


def test_a_transform_in_the_wrong_place_is_told_where_it_belongs() -> None:
    with pytest.raises(WindowError, match=r"field 'a': Swap is a transform of whole batches"):
        TransformChain({"a": (Swap(),)})
    with pytest.raises(WindowError, match="OnlyPairs is a transform of one field"):
        TransformChain({}, OnlyPairs())


def test_the_class_of_a_transform_is_refused_for_want_of_an_instance() -> None:
    with pytest.raises(WindowError, match=r"field 'a': Swap is a class. Give an instance: Swap\(...\)"):
        TransformChain({"a": (Swap,)})
    with pytest.raises(WindowError, match="OnlyPairs is a class"):
        TransformChain({}, OnlyPairs)
    assert TransformChain({"a": (np.float32,)})


def test_a_loader_refuses_a_chain_that_does_not_fit_when_it_is_made(store: Store) -> None:
    with pytest.raises(WindowError, match=r"field 'number', transform OnlyPairs: \(3,\) is no pair"):
        Loader(store, {"number": Field("number", range(3), transform=OnlyPairs())})


def noise(store: Store, batch_size: int, **options: Any) -> dict[int, float]:
    """Return what is added to every number in an epoch."""
    fields = {"number": "number", "noisy": Field("number", transform=Jitter())}
    batches = Loader(store, fields, batch_size=batch_size, seed=2, **options)
    return {int(n): float(x - n) for batch in batches for n, x in zip(batch["number"], batch["noisy"], strict=True)}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("order", ["random", pooled(bytes="1 KiB", blocks=4)], ids=["random", "pooled"])
def test_windows_of_a_loader_are_the_same_for_any_batch_size(store: Store, threads: int, order: Any) -> None:
    assert noise(store, 5, threads=threads, order=order) == noise(store, 64, order=order)


def test_windows_of_a_loader_are_the_same_for_any_number_of_ranks(store: Store) -> None:
    halves = [noise(store, 3, rank=rank, world_size=2, order="random") for rank in range(2)]
    assert halves[0] | halves[1] == noise(store, 64, order="random")


def test_windows_of_a_dataset_have_numbers_of_their_own_in_any_read(store: Store) -> None:
    dataset = WindowDataset(store, {"noisy": Field("number", transform=Jitter())}, seed=1)
    together = [sample["noisy"] for sample in dataset.__getitems__([3, 1, 2])]
    assert [dataset[i]["noisy"] for i in (3, 1, 2)] == together
    dataset.set_epoch(1)
    assert dataset[3]["noisy"] != together[0]


class Half(Transform):
    """Say nothing of what comes out."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def __call__(self, values: Any, draws: Draws) -> Any:
        return self.change(values)


class HalfBatch(BatchTransform):
    """Lose windows of one key."""

    def __call__(self, batch: dict, draws: Draws) -> dict:
        return {**batch, "state": batch["state"][1:]}


class NoDraws(Transform):
    """Forget the parameter ``draws``."""

    def __call__(self, values: Any) -> Any:
        return values


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Half(lambda values: values[1:]), r"Half of field 'state' returned float32 \(3, 2, 2\), where .* \(4, 2, 2\)"),
        (Half(lambda values: values[..., :1]), r"returned float32 \(4, 2, 1\)"),
        (Half(lambda values: values.astype(np.float64)), r"returned float64 .* says float32"),
        (Half(lambda values: values.tolist()), "returned a list"),
        (lambda values: values[::2], "made 2 windows of 4. It must return as many"),
    ],
)
def test_what_is_not_as_its_output_says_is_an_error_that_names_the_transform(
    store: Store, transform: Any, message: str
) -> None:
    fields = {"state": Field("observation.state", range(2), transform=transform)}
    with pytest.raises(LoaderError, match=message):
        next(iter(Loader(store, fields, batch_size=4)))


def test_a_batch_that_is_not_as_its_outputs_say_is_an_error_that_names_the_transform(store: Store) -> None:
    loader = Loader(store, {"state": Field("observation.state")}, batch_size=4, transform=HalfBatch())
    with pytest.raises(LoaderError, match=r"HalfBatch of the loader returned float32 \(3, 2\) as 'state'"):
        next(iter(loader))


@pytest.mark.parametrize("transform", [NoDraws(), 3])
def test_what_cannot_be_called_as_a_transform_is_refused_when_the_loader_is_made(store: Store, transform: Any) -> None:
    with pytest.raises(WindowError, match=r"cannot be called"):
        Loader(store, {"state": Field("observation.state", transform=transform)})
    with pytest.raises(WindowError, match=r"Loader\(transform=...\).*(one field|cannot be called|is no transform)"):
        Loader(store, {"state": Field("observation.state")}, transform=transform)
