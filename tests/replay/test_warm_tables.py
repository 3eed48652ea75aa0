"""A table and a loader load their kernels when they are made: the first batch waits for none."""

import subprocess
import sys

import pytest

FIRST_BATCH = """
import sys
import numpy as np, stepwell
from stepwell.kernels.kernel import KERNELS
from stepwell.kernels.signatures import text_of
from stepwell.replay import ReplayLoader, Table, transition_fields

def loaded():
    return {(each.py_func.__name__, *map(text_of, args)) for each in KERNELS for args in each.overloads}

number = stepwell.Array((), "int64")
schema = {"observation": stepwell.Array(4, final=True), "action": number, "reward": stepwell.Array()}
store = stepwell.create(":memory:", schema, capacity=10_000)
targets = transition_fields(n_step=int(sys.argv[2]))
table = Table(store, sampler=sys.argv[1], pattern=targets.pattern)
loader = ReplayLoader(table, targets.fields, transform=targets.transform, batch_size=8)
before = loaded()
writer = store.writer()
for round in range(6):
    for t in range(20):
        writer.append(observation=np.zeros(4, "f4"), action=0, reward=1.0)
    if round % 2:
        writer.end_episode(truncated=True, final={"observation": np.zeros(4, "f4")})
    batch = next(loader)
    loader.update_priorities(batch, batch["reward"])
print(len(before) > 5, sorted(loaded() - before))
"""


@pytest.mark.parametrize(("sampler", "n_step"), [("uniform", 1), ("prioritized", 3)])
def test_the_first_batches_load_no_kernel(sampler: str, n_step: int) -> None:
    command = [sys.executable, "-c", FIRST_BATCH, sampler, str(n_step)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "True []\n"
