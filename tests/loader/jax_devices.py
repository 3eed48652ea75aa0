"""Loaders over eight devices of JAX that are the CPU; run with the path of a store of numbered steps."""

# ruff: noqa: E402

import os
import sys
import warnings

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
warnings.simplefilter("error")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import stepwell
from stepwell import Loader, ReplayLoader, Table
from stepwell.errors import LoaderError, OrderError

STORE = stepwell.open(sys.argv[1], mode="r")
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
ROWS, BOTH, WHOLE = (
    NamedSharding(MESH, P("data")),
    NamedSharding(MESH, P("data", None, "model")),
    NamedSharding(MESH, P()),
)
FIELDS = {"state": range(8), "image": [0]}


def check_rows(batch, plain) -> None:
    for key, value in plain.items():
        np.testing.assert_array_equal(batch[key], value)
        for shard in batch[key].addressable_shards:
            np.testing.assert_array_equal(shard.data, value[shard.index])


def held(batches, plain, sharding) -> None:
    """Hold batches of a sharding, and compare them at the end."""
    some = [(next(batches), next(plain)) for _ in range(60)]
    for batch, other in some:
        assert batch["state"].sharding == sharding
        assert len(batch["state"].addressable_shards) == 8
        check_rows(batch, other)


def refused(error, match, make) -> None:
    try:
        make()
    except error as raised:
        assert match in str(raised), raised
    else:
        raise AssertionError(f"no {error.__name__}")


options = {"batch_size": 32, "order": "random", "epochs": None}
for threads in (0, 2):
    for sharding in (ROWS, BOTH, WHOLE):
        # the mask has an axis less
        given = {"state": BOTH, "state_is_pad": ROWS} if sharding == BOTH else sharding
        made = Loader(STORE, {"state": range(8)}, to="jax", sharding=given, threads=threads, **options)
        held(iter(made), iter(Loader(STORE, {"state": range(8)}, **options)), sharding)
made = ReplayLoader(Table(STORE, seed=1), {"state": "state"}, batch_size=32, to="jax", sharding=ROWS, info=())
held(made, ReplayLoader(Table(STORE, seed=1), {"state": "state"}, batch_size=32, info=()), ROWS)

# by key, and by a function; what is not named can be used with all else
batch = next(iter(Loader(STORE, FIELDS, to="jax", sharding={"state": BOTH}, **options)))
assert batch["state"].sharding == BOTH and batch["state"].addressable_shards[0].data.shape == (8, 8, 8)
assert len(batch["image"].devices()) == 1
jax.jit(lambda batch: batch["state"].sum() + batch["image"].sum())(dict(batch))
batch = next(
    iter(Loader(STORE, FIELDS, to="jax", sharding=lambda key, shape: ROWS if len(shape) == 3 else None, **options))
)
assert batch["state"].sharding == batch["image"].sharding == ROWS
assert len(batch["state_is_pad"].devices()) == 1
batch = next(iter(Loader(STORE, FIELDS, to="jax", device="cpu:3", **options)))
assert batch["state"].devices() == {jax.devices()[3]}

# the mean over a sharded batch is one over all of its rows
batch = next(iter(Loader(STORE, FIELDS, to="jax", sharding=ROWS, pad=True, batch_size=32)))
assert float(jax.jit(lambda b: b["state"][:, 0, 0].mean())(batch)) == 15.5

# a batch that cannot be divided is refused before the first one: 2,999 anchors end with one of 99
refused(OrderError, "makes 4 parts of it", lambda: Loader(STORE, FIELDS, to="jax", sharding=ROWS, batch_size=30))
refused(OrderError, "drop_last=True", lambda: Loader(STORE, FIELDS, to="jax", sharding=ROWS, batch_size=116))
refused(
    OrderError, "drop_last=True", lambda: ReplayLoader(STORE, FIELDS, to="jax", sharding={"state": ROWS}, batch_size=30)
)
for fit in ({"drop_last": True}, {"pad": True}, {"epochs": None}):
    Loader(STORE, FIELDS, to="jax", sharding=ROWS, batch_size=116, **fit)
late = Loader(STORE, FIELDS, to="jax", sharding=lambda key, shape: ROWS, batch_size=30)
refused(LoaderError, "batch of 30 rows cannot be laid out", lambda: next(iter(late)))
late = Loader(STORE, FIELDS, to="jax", sharding=BOTH, pad=True)
refused(LoaderError, "masks among them", lambda: next(iter(late)))
late = Loader(STORE, FIELDS, to="jax", sharding={"stat": ROWS}, pad=True)
refused(LoaderError, "sharding names 'stat', which the batch does not have", lambda: next(iter(late)))
late = Loader(STORE, FIELDS, to="jax", sharding=lambda key, shape: "data")
refused(OrderError, "a str as sharding of 'state', as returned", lambda: next(iter(late)))
print("done")
