"""Rows that wait for a slow codec, while Ctrl-C comes again and again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import warm_children

import stepwell.testing.codecs  # noqa: F401 - registers the codecs
from stepwell.schema import Array
from stepwell.store import create, open

INTERRUPTED = """
import random, signal, sys
import numpy as np
import stepwell.testing.codecs
from stepwell.errors import StepError
from stepwell.store import open

SHORT_SECONDS = 2e-3
count, is_armed, longest = 0, False, SHORT_SECONDS

def interrupt(*_):
    global count, longest
    signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, longest))
    if is_armed:
        count += 1
        # until something gets done, however slow the machine is
        longest *= 1.05
        raise KeyboardInterrupt

def is_done(call, *args, **keywords):
    global is_armed, longest
    try:
        is_armed = True
        call(*args, **keywords)
        is_armed = False
        longest = SHORT_SECONDS
        return True
    except KeyboardInterrupt:
        return False
    finally:
        is_armed = False

random.seed(int(sys.argv[2]))
writer = open(sys.argv[1]).writer(queue_bytes=5 * 24)
signal.signal(signal.SIGALRM, interrupt)
interrupt()
t, acknowledged, number = 0, [], 0
while count < int(sys.argv[3]) or len(acknowledged) < int(sys.argv[4]):
    row = np.full((2, 3), t, np.int32)
    if is_done(writer.append, slow=row, late=row, t=t):
        acknowledged.append(t)
    t += 1
    if t % 20 == 0:
        number += 1
        try:
            while not is_done(writer.end_episode, number=number):
                pass
        except StepError:
            # it had ended when the Ctrl-C came
            pass
signal.setitimer(signal.ITIMER_REAL, 0)
writer.close()
print(*acknowledged)
"""


@pytest.mark.parametrize("milliseconds", [0, 1])
def test_rows_are_stored_once_and_in_order_however_often_ctrl_c_comes(tmp_path: Path, milliseconds: int) -> None:
    slow = Array((2, 3), "int32", codec="slow-running", milliseconds=milliseconds)
    late = Array((2, 3), "int32", codec="slow-running", milliseconds=milliseconds, lag=3)
    store = create(tmp_path / "a.well", {"slow": slow, "late": late, "t": Array((), "int64")})
    command = [sys.executable, "-c", INTERRUPTED, str(store.path), "0", "300", "40"]
    done = warm_children.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    store = open(store.path)
    assert len(done.stdout.split()) >= 40
    stored = np.concatenate([episode["t"] for episode in store])
    assert (np.diff(stored) > 0).all()
    assert set(map(int, done.stdout.split())) <= set(stored.tolist())
    for name in ("slow", "late"):
        rows = np.concatenate([episode[name] for episode in store])
        assert np.array_equal(rows, np.broadcast_to(stored[:, None, None], rows.shape)), name
    assert store.verify(deep=True).is_ok
