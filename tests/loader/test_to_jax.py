"""Batches as arrays of JAX: the values of numpy's, over memory that is never written again while an array lives."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Batch, Loader, ReplayLoader, Table, View, WindowDataset
from stepwell.errors import LoaderError, MissingDependencyError, OrderError
from stepwell.loader.devices import DeviceSource
from stepwell.loader.jax_arrays import JaxCopier, import_jax
from stepwell.loader.settings import LoaderSettings
from stepwell.store import Store
from stepwell.windows import aligned_empty

jax = pytest.importorskip("jax")

FIELDS = {"number": "number", "state": ("observation.state", [-1, 0, 1]), "image": "observation.image", "text": "text"}
PLAIN = {"state": range(8), "image": [0]}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of 2,999 steps that hold their own numbers."""
    store = stepwell.create(
        tmp_path_factory.mktemp("jax") / "many.well", {"state": Array(16), "image": Array(64, "u1")}
    )
    with store.writer() as writer:
        for first in range(0, 3000, 250):
            numbers = np.arange(first, min(first + 250, 2999))
            states = np.repeat(numbers[:, None], 16, axis=1).astype(np.float32)
            writer.add_episode({"state": states, "image": np.repeat(numbers[:, None], 64, axis=1).astype(np.uint8)})
    store.refresh()
    return store


def fields() -> dict[str, Any]:
    return {key: stepwell.Field(*each) if isinstance(each, tuple) else each for key, each in FIELDS.items()}


def address(array: Any) -> int:
    found: int = array.unsafe_buffer_pointer()
    return found


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("order", ["random", "pooled"])
def test_values_are_those_of_numpy(store: Store, threads: int, order: Any) -> None:
    options = {"batch_size": 8, "order": order, "threads": threads, "pad": True}
    loaders = [Loader(store, fields(), to=to, **options) for to in ("numpy", "jax")]
    for plain, batch in zip(*loaders, strict=True):
        assert (batch.epoch, batch.index) == (plain.epoch, plain.index)
        np.testing.assert_array_equal(batch.anchors, plain.anchors)
        assert (batch.valid is None) == (plain.valid is None)
        if plain.valid is not None:
            assert isinstance(batch.valid, jax.Array)
            np.testing.assert_array_equal(batch.valid, plain.valid)
        assert batch.keys() == plain.keys()
        for key in plain:
            np.testing.assert_array_equal(batch[key], plain[key])
        kinds = {key: str(value.dtype) for key, value in batch.items() if isinstance(value, jax.Array)}
        masks = {"state_is_pad": "bool"}
        assert kinds == {"number": "int32", "state": "float32", "image": "uint8", **masks}
        assert isinstance(batch["text"], np.ndarray)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "int32", "float16", "int8", "uint16", "complex64"])
def test_aligned_memory_is_not_copied(dtype: str) -> None:
    value = aligned_empty(64 * np.dtype(dtype).itemsize).view(dtype).reshape(8, 8)
    value[...] = 1
    made, _ = JaxCopier(None, None).begin(Batch({"x": value}))
    assert address(made["x"]) == value.ctypes.data


def test_a_batch_of_the_loader_is_not_copied(many: Store) -> None:
    seen = []
    loader = Loader(many, PLAIN, to="jax", transform=lambda batch: seen.append(address_of(batch)) or batch)
    for batch in loader:
        assert address_of(batch) == seen[-1]


def address_of(batch: Any) -> dict[str, int]:
    return {
        key: value.ctypes.data if isinstance(value, np.ndarray) else address(value)
        for key, value in batch.items()
        if key in PLAIN
    }


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0)[::-1],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.moveaxis(np.arange(24, dtype="u1").reshape(2, 2, 2, 3), -1, 1),
        np.arange(4, dtype=">i4"),
        np.arange(4, dtype=">f8"),
        np.zeros((0, 3)),
        np.array([(0, 1.5), (0, 2.5)], [("tag", "u1"), ("x", "f4")])["x"],
    ],
)
def test_other_memory_is_copied(value: np.ndarray) -> None:
    value.flags.writeable = False
    made, _ = JaxCopier(None, None).begin(Batch({"x": value}))
    assert isinstance(made["x"], jax.Array)
    np.testing.assert_array_equal(made["x"], value)


@pytest.mark.parametrize(
    "value",
    [np.array(["a", None], object), np.array(["a"]), np.zeros(2, [("x", "f4")]), np.zeros(1, "M8[s]"), ["a"]],
)
def test_what_jax_cannot_hold_stays_as_it_is(value: Any) -> None:
    assert JaxCopier(None, None).begin(Batch({"x": value}))[0]["x"] is value


def makers(store: Store) -> dict[str, Any]:
    table = Table(store)
    return {
        "inline": lambda to: Loader(store, PLAIN, batch_size=32, order="random", epochs=None, to=to, threads=0),
        "threads": lambda to: Loader(store, PLAIN, batch_size=32, order="random", epochs=None, to=to, threads=2),
        "pooled": lambda to: Loader(store, PLAIN, batch_size=32, order="pooled", epochs=None, to=to, page_cache=False),
        "replay": lambda to: ReplayLoader(table, {"state": "state"}, batch_size=32, to=to),
        "replay, threads": lambda to: ReplayLoader(table, {"state": "state"}, batch_size=32, to=to, threads=2),
        "replay of a view": lambda to: ReplayLoader(View(store), PLAIN, batch_size=32, to=to),
    }


@pytest.mark.parametrize("kind", ["inline", "threads", "pooled", "replay", "replay, threads", "replay of a view"])
def test_no_batch_that_is_held_changes(many: Store, kind: str) -> None:
    batches = iter(makers(many)[kind]("jax"))
    held, copies = [], []
    for number in range(150):
        batch = next(batches)
        # those in between are dropped, so that their memory is used again
        if number % 3 == 0:
            held.append(batch)
            copies.append({key: np.array(value, copy=True) for key, value in batch.items()})
    batches.close()
    for batch, copy in zip(held, copies, strict=True):
        for key in copy:
            np.testing.assert_array_equal(batch[key], copy[key])


@pytest.mark.parametrize("kind", ["inline", "threads", "replay"])
def test_memory_of_batches_that_are_dropped_is_used_again(many: Store, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = []
        patch.setattr("stepwell.loader.memory.aligned_empty", lambda size: made.append(size) or aligned_empty(size))
        batches = iter(makers(many)[kind]("jax"))
        for _ in range(500):
            batch = next(batches)
            batch["state"].sum().block_until_ready()
        del batch
        batches.close()
    # groups of 16 small batches are built ahead, of which each has its block
    assert len(made) < 200


@pytest.mark.parametrize("kind", ["inline", "threads", "replay"])
def test_work_under_way_sees_the_batch_that_it_was_given(many: Store, kind: str) -> None:
    @jax.jit
    def slow(state: Any) -> Any:
        # two milliseconds of work in front of what reads the batch
        ones = jax.lax.fori_loop(0, 20, lambda _, x: (x @ x) / 192, jax.numpy.ones((192, 192)))
        return state.sum(axis=1) * ones[0, 0]

    options = [makers(many)[kind](to) for to in ("jax", "numpy")]
    batches = iter(options[0])
    expected, found = [], []
    for _ in range(100):
        batch = next(batches)
        state = batch["state"].reshape(32, -1)
        expected.append(np.array(state).sum(axis=1))
        # what was computed is all that is held
        found.append(slow(state))
        del batch, state
    batches.close()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_a_donated_batch_and_a_result_that_is_the_batch_are_safe(many: Store) -> None:
    add = jax.jit(lambda state: state + 1, donate_argnums=0)
    same = jax.jit(lambda state: state)
    expected, added, passed = [], [], []
    for batch in Loader(many, PLAIN, batch_size=32, order="random", to="jax"):
        expected.append(np.array(batch["state"]))
        passed.append(same(batch["state"]))
        added.append(add(batch["state"]))
    for one, two, three in zip(expected, added, passed, strict=True):
        np.testing.assert_array_equal(one + 1, two)
        np.testing.assert_array_equal(one, three)


def test_a_batch_is_a_pytree(store: Store) -> None:
    loader = Loader(store, {"a.b": "observation.state", "a.c": "number"}, batch_size=5, to="jax", nested=True, pad=True)
    count = 0

    @jax.jit
    def total(batch: Batch) -> Any:
        nonlocal count
        count += 1
        return batch["a"]["b"].sum() + batch["a"]["c"].sum() * batch.valid.sum()

    for batch in loader:
        if batch.valid is not None:
            total(batch)
    assert count == 1
    doubled = jax.tree.map(lambda x: 2 * x, batch)
    assert isinstance(doubled, Batch)
    np.testing.assert_array_equal(doubled["a"]["c"], 2 * np.asarray(batch["a"]["c"]))
    assert jax.tree.structure(doubled) == jax.tree.structure(batch)
    assert "int32[5]" in repr(batch)


def test_integers_that_do_not_fit_are_refused() -> None:
    for value in (np.array([1, 2**40]), np.array([-(2**31) - 1]), np.array([2**32], np.uint64)):
        with pytest.raises(LoaderError, match=r"'time' holds u?int64 values .*jax_enable_x64"):
            JaxCopier(None, None).begin(Batch({"time": value}))
    made, _ = JaxCopier(None, None).begin(Batch({"x": np.array([1e300, np.nan, 1.5]), "n": np.array([2**31 - 1])}))
    assert made["x"].dtype == np.float32
    assert made["n"].tolist() == [2**31 - 1]
    np.testing.assert_array_equal(made["x"], np.array([np.inf, np.nan, 1.5], np.float32))


def test_64_bits_stay_where_jax_has_them(store: Store) -> None:
    jax.config.update("jax_enable_x64", True)
    try:
        value = np.array([2**40, -1])
        made, _ = JaxCopier(None, None).begin(Batch({"n": value, "table.key": value.astype(np.uint64)}))
        assert (made["n"].dtype, made["table.key"].dtype) == (np.int64, np.uint64)
        assert made["n"].tolist() == value.tolist()
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("threads", [0, 1])
def test_priorities_of_jax_reach_the_items_of_a_batch(many: Store, nested: bool, threads: int) -> None:
    table = Table(many, sampler="prioritized")
    with ReplayLoader(table, {"state": "state"}, batch_size=16, to="jax", nested=nested, threads=threads) as loader:
        batch = next(loader)
        info = batch["table"] if nested else {key[6:]: batch[key] for key in batch if key.startswith("table.")}
        assert isinstance(info["key"], np.ndarray)
        assert info["key"].dtype == np.uint64
        assert {name: str(info[name].dtype) for name in ("weight", "priority", "times_sampled", "size")} == {
            "weight": "float32", "priority": "float32", "times_sampled": "int32", "size": "int32",
        }  # fmt: skip
        errors = jax.numpy.abs(batch["state"]).mean(axis=-1) + 1
        assert loader.update_priorities(batch, errors) == 16
        assert loader.max_staleness == (2 if threads else 0)


class Source:
    """Batches that are all built already."""

    is_ready = True

    def __init__(self) -> None:
        self.number = 0

    def take(self) -> tuple[int, Batch]:
        self.number += 1
        return self.number, Batch({"x": np.full(4, self.number, np.float32)})


def test_the_next_batch_is_under_way_when_one_is_handed_over() -> None:
    inner = Source()
    source = DeviceSource(inner, JaxCopier("cpu", None))
    for number in range(1, 4):
        job, batch = source.take()
        assert (job, batch["x"].tolist(), inner.number) == (number, [number] * 4, number + 1)


def test_transforms_see_numpy(store: Store) -> None:
    kinds = set()
    loader = Loader(
        store, {"number": "number"}, to="jax", transform=lambda batch: kinds.add(type(batch["number"])) or batch
    )
    list(loader)
    assert kinds == {np.ndarray}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding": 3}, "an? int as sharding"),
        ({"sharding": {"number": 3}}, "an? int as sharding of 'number'"),
        ({"device": ":1"}, "Allowed"),
        ({"device": "cpu:x"}, "Allowed"),
        ({"device": 0}, "Allowed"),
        ({"device": "cpu", "sharding": {}}, "Give one"),
    ],
)
def test_a_wrong_target_is_refused_when_the_loader_is_made(store: Store, options: dict, message: str) -> None:
    with pytest.raises(OrderError, match=message):
        Loader(store, {"number": "number"}, to="jax", **options)


@pytest.mark.parametrize("device", ["nope", "cpu:99"])
def test_a_device_that_is_not_here_is_refused_when_the_loader_is_made(store: Store, device: str) -> None:
    with pytest.raises(LoaderError, match=f"device='{device}'"):
        Loader(store, {"number": "number"}, to="jax", device=device)


def test_shardings_and_pinned_memory_are_for_one_library_each() -> None:
    with pytest.raises(OrderError, match='needs to="jax"'):
        LoaderSettings(to="torch", sharding={})
    with pytest.raises(OrderError, match="JAX pins by itself"):
        LoaderSettings(to="jax", pin_memory=True)


def test_datasets_of_torch_make_no_arrays_of_jax(store: Store) -> None:
    with pytest.raises(OrderError, match="WindowDataset"):
        WindowDataset(store, to="jax")


def test_missing_jax_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[jax\]"):
        import_jax.__wrapped__()


def test_shardings_over_eight_devices(many: Store) -> None:
    script = Path(__file__).parent / "jax_devices.py"
    done = subprocess.run([sys.executable, script, many.path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # it ends with a table that is open
    assert "Exception ignored" not in done.stderr


def test_a_batch_of_several_processes(many: Store) -> None:
    script = Path(__file__).parent / "jax_processes.py"
    done = subprocess.run([sys.executable, script, many.path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\ndone\n"), done.stderr
