"""A Python whose system has nothing that only Linux has, as far as stepwell can see: what a Mac lacks is missing.

With this folder on PYTHONPATH, each interpreter imports this as it starts, processes that it spawns too. When stepwell
is imported for the first time, after the packages that it computes with, names go from `os`, `fcntl`, `socket` and
others, `sys.platform` says darwin, and paths that only Linux has are not there.
"""

import os
import sys

MISSING = {
    "os": (
        "O_DIRECT", "O_NOATIME", "O_PATH", "copy_file_range", "eventfd", "eventfd_read", "eventfd_write",
        "fdatasync", "memfd_create", "pidfd_open", "posix_fadvise", "posix_fallocate", "process_cpu_count",
        "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_setaffinity", "sched_setparam",
        "sched_setscheduler", "sendfile", "setns", "splice", "timerfd_create", "unshare",
    ),
    "fcntl": ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS"),
    "socket": ("SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
    "mmap": ("MAP_POPULATE", "MADV_POPULATE_READ", "MADV_HUGEPAGE"),
    "select": ("epoll",),
}  # fmt: skip
FOLDERS = ("/proc", "/dev/shm", "/sys")
# what stepwell computes with looks for its own files by Linux's names
FIRST = ("numpy", "numba", "llvmlite.binding", "multiprocessing.popen_spawn_posix", "asyncio", "selectors")


class BeforeStepwell:
    """Finds no module, but takes Linux away as soon as stepwell is looked for."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "stepwell":
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not BeforeStepwell]
            take_away()


def take_away() -> None:
    from contextlib import suppress
    from importlib import import_module

    for name in FIRST:
        with suppress(ImportError):
            import_module(name)
    for module, names in MISSING.items():
        for name in names:
            found = import_module(module)
            if hasattr(found, name):
                delattr(found, name)
    # decided when it was imported
    import_module("shutil")._USE_CP_SENDFILE = False
    sys.platform = "darwin"
    for name in ("stat", "lstat", "access", "readlink"):
        setattr(os, name, refusing(getattr(os, name)))
    sys.addaudithook(refuse)
    clock_gettime_ns = import_module("time").clock_gettime_ns

    def refuse_coarse(clock):
        if clock == 5:
            raise OSError(22, "Invalid argument")
        return clock_gettime_ns(clock)

    import_module("time").clock_gettime_ns = refuse_coarse


def is_refused(path) -> bool:
    path = os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else path
    return isinstance(path, str) and any(path == folder or path.startswith(f"{folder}/") for folder in FOLDERS)


def refusing(call):
    """Return a call of `os` that does not find Linux's folders."""

    def refused(path, *arguments, **options):
        if is_refused(path):
            if call.__name__ == "access":
                return False
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *arguments, **options)

    return refused


def refuse(event, arguments) -> None:
    """Raise what a Mac would where Linux's folders, or sockets without files, are used."""
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir") and arguments and is_refused(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event in ("socket.bind", "socket.connect"):
        address = arguments[1]
        if isinstance(address, str | bytes) and address[:1] in ("\0", b"\0"):
            raise FileNotFoundError(2, "No such file or directory")


sys.meta_path.insert(0, BeforeStepwell)
