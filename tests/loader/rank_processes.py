"""Real ranks: forks of one process that has loaded torch, joined by gloo.

::

    pytest --a line a task--> one process: imports --fork--> compiled kernels --fork--> 8 ranks: join a group, work,
                                                                                        pickle of what they found
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _server() -> subprocess.Popen[str]:
    """Return the process that has loaded torch, which the tests of this process share."""
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)
    return server


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
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    print(root, file=server.stdin, flush=True)
    if int(server.stdout.readline()) and check:
        raise AssertionError((root / "errors").read_text()[-4000:])
    files = [root / f"{rank}.pickle" for rank in range(world)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def serve() -> None:
    """Run the tasks whose directories are read, and print how many ranks failed in each."""
    import torch.distributed  # noqa: F401  (once for all)

    sys.path.insert(0, str(Path(__file__).parents[2]))
    import_module("tests.loader.exact_ranks")
    for line in sys.stdin:
        root = Path(line.rstrip("\n"))
        child = os.fork()
        if child == 0:
            with (root / "errors").open("wb") as file:
                os.dup2(file.fileno(), 2)
            os._exit(main(root))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def main(root: Path) -> int:
    """Fork the ranks, and return how many failed."""
    world, work, arguments = pickle.loads((root / "task.pickle").read_bytes())
    module, _, name = work.partition(":")
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
    serve()
