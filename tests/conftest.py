"""What every test runs under: one hypothesis profile, no window on a screen, and a cache that is no user's."""

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import warm_children
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stepwell.recorders import chunks

# scripts that wrote golden files, with packages that are not here
collect_ignore_glob = ["golden/make_*.py"]

# pygame draws PushT; a test machine has no screen
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

# small products of matrices take longer on several threads, which spin beside the other tests
os.environ.setdefault("OMP_NUM_THREADS", "1")

# the time of one example says nothing on a shared machine, and compiling a kernel takes longer than any deadline;
# explaining a failure took hypothesis more minutes than a test has
PHASES = [phase for phase in Phase if phase is not Phase.explain]
# the same examples in every run, so that no run fails by chance; STEPWELL_HYPOTHESIS=random looks for new ones by hand
settings.register_profile("stepwell", deadline=None, print_blob=True, phases=PHASES, derandomize=True)
settings.register_profile("random", deadline=None, print_blob=True, phases=PHASES, max_examples=1000)
settings.load_profile(os.environ.get("STEPWELL_HYPOTHESIS", "stepwell"))
# newer releases draw literals of the source of whatever modules are loaded by then, too: other examples in another
# order of tests, and "inconsistent data generation" where a test is the first to load one
if (providers := find_spec("hypothesis.internal.conjecture.providers")) is not None:
    providers = import_module(providers.name)
    providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # for the whole session: fixtures of modules open datasets, too
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_CACHE", str(tmp_path_factory.getbasetemp() / "stepwell-cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """Have Ctrl-C raise KeyboardInterrupt: a suite that a script starts with ``&`` begins with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_heartbeat() -> None:
    """Let no thread go round open segments: tests count threads, and images of disks hold what was synced by calls."""
    from stepwell.store import commit

    commit._thread = threading.main_thread()


@pytest.fixture(scope="session", autouse=True)
def _warm_workers() -> Iterator[None]:
    """Fork the worker processes of stepwell from one that has loaded it: a spawned one takes 0.6 s to do so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_Worker", WarmWorker)
        yield
    warm_children.stop()


class WarmWorker(chunks._Worker):
    """A worker process that is forked where it would be spawned; it gets its job by pickle all the same."""

    def __init__(self, start_method: chunks.StartMethod, payload: Any, number: int) -> None:
        if start_method == "spawn":
            warm_children.context()
            start_method = "forkserver"
        super().__init__(start_method, payload, number)


@pytest.fixture
def spawned_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawn worker processes, as users do."""
    monkeypatch.setattr(chunks, "_Worker", WarmWorker.__base__)


def pytest_collection_finish() -> None:
    """Keep what was collected, 12,000 tests and their modules, out of the collections of garbage of tests and forks."""
    # hypothesis before 6.140 finds its random generators by gc.get_referrers, which passes over what is frozen
    given(st.none())(lambda _: None)()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Record what kernels were called with, see `stepwell.kernels.signatures`."""
    if os.environ.get("STEPWELL_RECORD_KERNELS"):
        from stepwell.kernels.signatures import record_signatures

        record_signatures()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line how many tests need the sample files beside the checkout."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    count = sum("shared" in str(reason) for reason in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests need the sample files in ../shared/data, which are not there.")


@pytest.fixture(autouse=True)
def _ordinary_priority() -> Iterator[None]:
    """Fail a test that leaves its thread a real-time one, as SVT-AV1 does: what comes later would starve others."""
    yield
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        pytest.fail("left its thread at a real-time priority: open SVT-AV1 within ordinary_threads()")


@pytest.fixture
def forked_child() -> Iterator[Callable[[], None]]:
    """Fork children that do nothing, and live until the test ends."""
    if not hasattr(os, "fork"):
        pytest.skip("os.fork")
    read, write = os.pipe()
    children = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        children.append(child)

    yield fork
    os.close(write)
    os.close(read)
    for child in children:
        os.waitpid(child, 0)
