"""Real ranks: forks of one process that has loaded torch, joined by gloo. Run as ``python -m`` by `run_ranks`.

::

    pytest --> one process: imports, compiled kernels --fork--> 8 ranks: join a group, work, pickle of what it found
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 270


def run_ranks(world: int, work: str, root: Path, *arguments: Any, check: bool = True) -> list[Any]:
    """Return what a function returned on every rank; None of one that did not get so far.

    Args:
        world: number of ranks.
        work: "module:function", of (rank, world, *arguments); the module is beside this one.
        root: an empty directory.
        arguments: pickled.
        check: whether a rank that failed is an error.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / "task.pickle").write_bytes(pickle.dumps((world, work, arguments)))
    command = [sys.executable, __file__, str(root)]
    done = subprocess.run(command, timeout=TIMEOUT_SECONDS, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise AssertionError(done.stderr[-4000:])
    files = [root / f"{rank}.pickle" for rank in range(world)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def main(root: Path) -> int:
    """Fork the ranks, and return how many failed."""
    import torch.distributed  # noqa: F401  (once for all)

    world, work, arguments = pickle.loads((root / "task.pickle").read_bytes())
    module, _, name = work.partition(":")
    sys.path.insert(0, str(Path(__file__).parents[2]))
    found = import_module(f"tests.loader.{module}")
    if hasattr(found, prepare := f"prepare_{name}"):
        getattr(found, prepare)(*arguments)
    function = getattr(found, name)
    children = [_fork(rank, world, function, arguments, root) for rank in range(world)]
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


def _fork(rank: int, world: int, function: Callable[..., Any], arguments: tuple[Any, ...], root: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        _join(rank, world, root)
        (root / f"{rank}.pickle").write_bytes(pickle.dumps(function(rank, world, *arguments)))
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # without the ends of an interpreter that other forks share
        os._exit(code)


def _join(rank: int, world: int, root: Path) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    store = distributed.FileStore(str(root / "meeting"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
