"""A machine that loses its power: what may be on its disk at each moment, from what the system was asked to keep.

Of a file that is there what was there at its last fsync is, and any of the 4 KiB pages that were written since. Of a
directory the entries at its last fsync are there, and any of what was made, removed or renamed since.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PAGE = 4096


class Disk:
    """Follow a directory from when the patch of `os.fsync` is there; `image` makes what a loss of power leaves.

    Args:
        root: of the directory, which stays.
        before: called before each fsync that is waited for.
    """

    def __init__(self, root: Path, before: Callable[[], None]) -> None:
        self.root, self._before = str(root), before
        self.files: dict[int, bytes] = {}
        self.directories: dict[int, dict[str, int]] = {}
        self.log: list[str] = []
        # inodes are held, or their numbers would be given to others
        self._held: dict[int, int] = {}
        self._kinds: dict[int, bool] = {}
        self._fsync = os.fsync
        self._lock = threading.RLock()
        self._inode = self._hold(os.open(self.root, os.O_RDONLY))
        self.directories[self._inode] = {}

    def fsync(self, descriptor: int) -> None:
        """Stand for `os.fsync`."""
        with self._lock:
            self._before()
            self._fsync(descriptor)
            inode = self._hold(os.dup(descriptor))
            self.log.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            if self._kinds[inode]:
                self.directories[inode] = self._entries(inode)
            else:
                self.files[inode] = self._content(inode)

    def image(self, target: Path, chance: random.Random) -> None:
        """Write what may be on the disk if the power goes now."""
        with self._lock:
            shutil.rmtree(target, ignore_errors=True)
            self._image(self._inode, str(target), chance)

    def copy(self, target: Path) -> None:
        """Write what is in memory: what a killed process leaves."""
        with self._lock:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self.root, target)

    def close(self) -> None:
        """Let go of all that was seen."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _image(self, inode: int, target: str, chance: random.Random) -> None:
        Path(target).mkdir()
        for name, entry in self._chosen(self.directories.get(inode, {}), self._entries(inode), chance).items():
            if self._kinds[entry]:
                self._image(entry, f"{target}/{name}", chance)
            else:
                self._write(entry, f"{target}/{name}", chance)

    def _chosen(self, before: dict[str, int], now: dict[str, int], chance: random.Random) -> dict[str, int]:
        """Return the entries that reached the disk: a rename is there or not, never half of one."""
        if chance.random() < 0.3:
            return dict(chance.choice([before, now]))
        found = {name: entry for name, entry in before.items() if now.get(name) == entry}
        names = sorted({*before, *now} - found.keys())
        moved = {entry: name for name, entry in now.items() if entry in before.values() and name in names}
        for name in names:
            old, new = before.get(name), now.get(name)
            if new is not None and new in before.values():
                # it is decided where it came from
                continue
            if old is not None and old in moved:
                place = name if chance.random() < 0.5 else moved[old]
                found[place] = old
                if place != name and new is not None and chance.random() < 0.5:
                    found[name] = new
            else:
                choice = chance.choice([old, new])
                if choice is not None:
                    found[name] = choice
        return found

    def _write(self, inode: int, target: str, chance: random.Random) -> None:
        old, new = self.files.get(inode, b""), self._content(inode)
        if chance.random() < 0.3:
            data = bytearray(chance.choice([old, new]))
        else:
            data = bytearray(old)
            for start in range(0, len(new), PAGE):
                page = new[start : start + PAGE]
                if page != old[start : start + PAGE] and chance.random() < 0.5:
                    data.extend(bytes(max(0, start + len(page) - len(data))))
                    data[start : start + len(page)] = page
            if chance.random() < 0.5:
                # the size is one of the inode's, and goes by itself
                del data[len(new) :]
                data.extend(bytes(len(new) - len(data)))
        Path(target).write_bytes(data)

    def _hold(self, descriptor: int) -> int:
        """Take over a descriptor; return the inode."""
        state = os.fstat(descriptor)
        self._kinds[state.st_ino] = stat.S_ISDIR(state.st_mode)
        if state.st_ino in self._held:
            os.close(descriptor)
        else:
            self._held[state.st_ino] = descriptor
        return state.st_ino

    def _entries(self, inode: int) -> dict[str, int]:
        """Return what a directory holds now, wherever it is by now."""
        directory = self._held[inode]
        names: list[str] = []
        # a thread that renames an entry meanwhile would leave neither name of it
        while True:
            found = {}
            with suppress(FileNotFoundError):
                for name in names:
                    found[name] = self._hold(os.open(name, os.O_RDONLY, dir_fd=directory))
            known, names = names, sorted(os.listdir(directory))  # noqa: PTH208  it has no path that stays
            if len(found) == len(names) and names == known:
                return found

    def _content(self, inode: int) -> bytes:
        return Path(f"/proc/self/fd/{self._held[inode]}").read_bytes()
