"""Child processes that are forks of one process that has loaded stepwell: 20 ms to the first statement, not 600.

`Popen` and `run` are those of `subprocess` for commands of this Python: ``[sys.executable, "-c", CODE]``, a script, or
``-m`` with a module. A test that asks about the interpreter itself (what is imported, how it exits, which variables it
reads as it starts, memory) takes those of `subprocess`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, reduction
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Popen", "context", "run", "stop"]


@cache
def context() -> Any:
    """Return a context of `multiprocessing` whose processes are forks of one that has loaded stepwell."""
    found = multiprocessing.get_context("forkserver")
    # only this process's variables reach the server: its path is not handed on
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        found.set_forkserver_preload(["loaded_stepwell"])
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    found.Process = _Process
    return found


def stop() -> None:
    """End the process that is forked."""
    if context.cache_info().currsize:
        # it would wait for whatever has inherited its pipe
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGTERM)
        forkserver._forkserver._stop()


class _Process(multiprocessing.context.ForkServerProcess):
    """A process with the variables of its parent, not with those that the server began with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.variables = dict(os.environ)

    def run(self) -> None:
        _replace_variables(self.variables)
        super().run()


class Popen(subprocess.Popen):
    """`subprocess.Popen` of a Python command that has loaded stepwell as it begins."""

    def _execute_child(self, args: Any, *options: Any) -> None:
        cwd, env = options[4:6]
        own = options[9], options[12], options[14]
        words = [os.fsdecode(word) for word in args]
        assert words[0] == sys.executable, words
        handles = [None if handle == -1 else _Handle(handle) for handle in own]
        place = os.fspath(cwd) if cwd else None
        variables = {
            os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if env is None else env).items()
        }
        # a daemon, so that no test that fails leaves one behind
        self._process = context().Process(target=_become, args=(words[1:], variables, place, handles), daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(*options[9:15])

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and not self._process.is_alive():
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def run(
    command: Sequence[Any],
    *,
    check: bool = False,
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a Python command to its end, as `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


class _Handle:
    """A file descriptor that goes to a child."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        return _detached, (reduction.DupFd(self.descriptor),)


def _detached(shared: Any) -> int:
    return shared.detach()


def _replace_variables(variables: Mapping[str, str]) -> None:
    # in place: cleared, a thread that reads one meanwhile finds nothing
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _become(words: list[str], variables: Mapping[str, str], place: str | None, handles: list[int | None]) -> None:
    """Be the command that words are of, to its end."""
    # it may have children
    multiprocessing.current_process()._config["daemon"] = False
    _replace_variables(variables)
    if place is not None:
        os.chdir(place)
    for target, handle in enumerate(handles):
        if handle is not None:
            os.dup2(handle, target)
    for handle in {handle for handle in handles if handle is not None}:
        os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate(("r", "w", "w")))
    status = 1
    try:
        _run_main(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for file in (sys.stdout, sys.stderr):
            file.flush()
        os._exit(status)


def _run_main(words: list[str]) -> None:
    first, *rest = words
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-c":
        sys.argv, code = ["-c", *rest[1:]], rest[0]
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), main.__dict__)
        return
    sys.argv, main.__file__ = words, first
    sys.path.insert(0, str(Path(first).parent))
    exec(compile(Path(first).read_text(encoding="utf-8"), first, "exec"), main.__dict__)
