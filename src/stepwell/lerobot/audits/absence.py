"""Files that are not there: one finding for all of a kind, with the likely cause.

::

    wanted  videos/observation.images.top/chunk-000/file-000.mp4
    found    video/observation.images.top/chunk-000/file-000.mp4       its directory has another name: mv video videos
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from stepwell.lerobot.audits.report import Rule, Subject

__all__ = ["Absences"]


@dataclass(slots=True)
class Absences:
    """The files of one kind that are missing, while they are gathered."""

    subject: Subject
    rule: Rule
    episodes: set[int] = field(default_factory=set)  # that lie in them, by number
    paths: list[str] = field(default_factory=list)  # below the root
    features: list[str] = field(default_factory=list)  # whose they are

    def add(self, path: str, episodes: Iterable[int], feature: str = "") -> None:
        """Take in a file that is missing."""
        self.paths.append(path)
        self.episodes.update(map(int, episodes))
        if feature and feature not in self.features:
            self.features.append(feature)

    def report(self, num_files: int) -> None:
        """Report them, of so many that were looked for."""
        if not self.paths:
            return
        first = min(self.paths)
        if len(self.paths) == 1:
            detail = f"{first}: no such file"
        else:
            detail = f"{len(self.paths):,} of {num_files:,} files are missing, the first is {first}"
        cause, command = _likely_cause(self.subject.root, first)
        about = self.features[0] if len(self.features) == 1 else ""
        self.subject.tally.add(self.rule, about, detail + cause, self.episodes, command=command)


def _likely_cause(root: Path, wanted: str) -> tuple[str, str]:
    """Return why a file may be missing, and the command that mends it; "" where nothing is known."""
    path = PurePosixPath(wanted)
    found = _nearest(root, path)
    if found is None:
        lost = next(part for part in [*reversed(path.parents), path] if not (root / part).exists())
        return ("" if lost == path else f"; there is no directory {lost}"), ""
    if found.suffix != path.suffix:
        return f"; {found} is there: its ending is another than meta/info.json says", ""
    here, there = _different(path.parts, found.parts)
    cause = f"; {found} is there: {'/'.join(there) or 'the root'} instead of {'/'.join(here) or 'the root'}"
    if len(here) != 1 or not there or (root / here[0]).exists():
        return cause, ""
    return cause, shlex.join(["mv", str(root.joinpath(*there)), str(root / here[0])])


def _nearest(root: Path, path: PurePosixPath) -> PurePosixPath | None:
    """Return the file of the same name, or the same but for its ending, whose directories are most alike."""
    for pattern in (glob.escape(path.name), f"{glob.escape(path.stem)}.*"):
        there = sorted(PurePosixPath(file.relative_to(root)) for file in root.rglob(pattern) if file.is_file())
        # files of other cameras and chunks have equal names, and those of the table of episodes
        alike = [
            file
            for file in there
            # what is a file of another kind by its root is none of this one by its ending
            if file.parts[0] not in {"meta", *({"data", "videos"} - {path.parts[0]})}
            and {*path.parts[1:-1]} <= {*file.parts[:-1]}
        ]
        if alike:
            return min(alike, key=lambda file: len(_different(path.parts, file.parts)[0]))
    return None


def _different(wanted: tuple[str, ...], found: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two paths without the directories at their ends that are equal, and without the files."""
    wanted, found = wanted[:-1], found[:-1]
    while wanted and found and wanted[-1] == found[-1]:
        wanted, found = wanted[:-1], found[:-1]
    return wanted, found
