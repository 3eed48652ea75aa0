"""Rules with stable codes, findings and their table, and the dataset that is audited.

::

    pusht (LeRobot v3.0): 9 episodes, 1,481 steps: 1 error, 2 warnings
      error    span-overlap         2 of 9: 3 4  observation.images.top: ...
                                                 -> what to do
                                                 $ command that mends it, where there is one
      warning  video-several-files  2 of 9: 7 8  observation.images.side: ...
      warning  video-several-files  1 of 9: 8    observation.images.top: ...
                                                 -> what to do
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.info import DatasetInfo
from stepwell.lerobot.meta_files import WHAT_TO_DO, EpisodeRecords
from stepwell.sizes import counted

__all__ = [
    "COMPUTE_AGAIN",
    "ENCODE_AGAIN",
    "FETCH",
    "LOOK_AGAIN",
    "RENUMBER",
    "RETIME",
    "WRITE_AGAIN",
    "AuditReport",
    "Finding",
    "Rule",
    "Subject",
    "Tally",
    "problem_of",
]

Severity = Literal["error", "warning"]
MAX_SHOWN_EPISODES = 5
LINE_WIDTH, LEAST_TEXT_WIDTH = 120, 50
ARROW, PROMPT = "-> ", "$ "
NARROW_MARGIN = " " * 6
RENUMBER = "stepwell edit renumber {source}"
"""Numbers rows, episodes and tasks, and writes times, spans and totals; files that are right stay."""
COMPUTE_AGAIN = "stepwell edit stats {source}"
"""Computes the statistics of numbers."""
LOOK_AGAIN = f"{COMPUTE_AGAIN} --cameras"
"""The same, and those of cameras."""
RETIME = "stepwell edit retime {source} --camera {feature}"
"""Shows each frame of a camera at its time; packets stay."""
WRITE_AGAIN = "stepwell edit rewrite {source}"
"""Writes the dataset anew, with meta/, statistics and spans as they are computed; packets stay."""
ENCODE_AGAIN = "stepwell edit reencode {source} --camera {feature}"
"""Encodes a camera anew, as it is shown, with a key frame where each episode begins."""
FETCH = "hf download {repo} --repo-type dataset --local-dir {name} && "
"""Fetches a dataset of the hub, since it is edited here."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A defect that a check looks for."""

    code: str  # never changes, e.g. ``"span-overlap"``
    # "error": training gets wrong data, or none; "warning": it may be meant, or only some tools are wrong
    severity: Severity
    advice: str  # what to do
    # for a shell, that mends it; may name {source}, which was audited, and {feature}; "": there is none
    command: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """One thing that is wrong with a dataset.

    Args:
        code: of the rule that is broken.
        severity: "error" or "warning".
        message: where, what was found, what is right.
        episodes: int64 [n], ascending, the affected episodes by their numbers; empty: it is the dataset's as a whole.
        advice: what to do.
        command: for a shell, that mends it; "" where there is none.
    """

    code: str
    severity: Severity
    message: str
    episodes: npt.NDArray[np.int64]
    advice: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.severity}: {self.code}: {self.message}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AuditReport:
    """What `audit` found: ``str()`` is a table, `to_json` the same for programs.

    Notes:
        An immutable value; safe to share.
    """

    path: str
    version: str
    num_episodes: int
    num_steps: int
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are warnings."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def is_ok(self) -> bool:
        """Whether there is no error; warnings may be there."""
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """Return the report as types of JSON."""
        findings = [
            {
                "severity": finding.severity,
                "code": finding.code,
                "message": finding.message,
                "num_episodes": len(finding.episodes),
                "episodes": finding.episodes.tolist(),
                "advice": finding.advice,
                "command": finding.command,
            }
            for finding in self.findings
        ]
        return {
            "path": self.path,
            "version": self.version,
            "num_episodes": self.num_episodes,
            "num_steps": self.num_steps,
            "is_ok": self.is_ok,
            "findings": findings,
            "unchecked": list(self.unchecked),
        }

    def __repr__(self) -> str:
        return f"<AuditReport {self.path}  {counted(self.num_episodes, 'episode')}  {self._verdict()}>"

    def _verdict(self) -> str:
        counts = [counted(len(self.errors), "error"), counted(len(self.warnings), "warning")]
        return ", ".join(counts) if self.findings else "nothing found"

    def __str__(self) -> str:
        return self.text(LINE_WIDTH)

    def text(self, width: int) -> str:
        """Return the report as lines of about so many columns; in narrow ones a finding stands below its code."""
        size = f"{counted(self.num_episodes, 'episode')}, {counted(self.num_steps, 'step')}"
        lines = [f"{self.path} (LeRobot {self.version}): {size}: {self._verdict()}", *self._table(width)]
        if self.unchecked:
            lines.append("not looked at:")
            lines.extend(f"  {line}" for line in self.unchecked)
        return "\n".join(lines)

    def _table(self, width: int) -> Iterator[str]:
        cells = [(found.severity, found.code, self._episodes_text(found)) for found in self.findings]
        widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
        advices = [(found.code, found.command) for found in self.findings]
        is_narrow = width < LINE_WIDTH
        room = max(LEAST_TEXT_WIDTH, LINE_WIDTH - sum(widths) - 8)
        if is_narrow:
            room = max(len(NARROW_MARGIN), width - len(NARROW_MARGIN))
        for number, (found, row) in enumerate(zip(self.findings, cells, strict=True)):
            head = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=True))
            text = textwrap.wrap(found.message, room)
            if advices[number + 1 : number + 2] != [advices[number]]:
                text += textwrap.wrap(ARROW + found.advice, room, subsequent_indent=" " * len(ARROW))
                # in one line, to be copied
                text += [PROMPT + found.command] if found.command else []
            if is_narrow:
                text, margins = ["", *text], [head, *[NARROW_MARGIN] * len(text)]
            else:
                margins = [head, *[" " * len(head)] * (len(text) - 1)]
            yield from (f"{margin}{line}".rstrip() for margin, line in zip(margins, text, strict=True))

    def _episodes_text(self, finding: Finding) -> str:
        if not len(finding.episodes):
            return "-"
        shown = " ".join(map(str, finding.episodes[:MAX_SHOWN_EPISODES].tolist()))
        more = " ..." if len(finding.episodes) > MAX_SHOWN_EPISODES else ""
        return f"{len(finding.episodes):,} of {self.num_episodes:,}: {shown}{more}"


@dataclass(slots=True)
class _Count:
    """The findings of one rule about one thing."""

    rule: Rule
    about: str
    detail: str
    episodes: set[int]
    command: str
    num_places: int = 1


@dataclass(slots=True)
class Tally:
    """Findings while they are gathered: those of one rule about one feature become one."""

    unchecked: list[str] = field(default_factory=list)
    _counts: dict[tuple[str, str], _Count] = field(default_factory=dict)

    def add(self, rule: Rule, about: str, detail: str, episodes: Iterable[int] = (), *, command: str = "") -> None:
        """Add a finding about a feature or a file ("" for the dataset); of several the first detail is kept.

        A command is as that of a rule, which is the default.
        """
        numbers = {int(number) for number in episodes}
        known = self._counts.get((rule.code, about))
        if known is None:
            self._counts[rule.code, about] = _Count(rule, about, detail, numbers, command)
        else:
            known.episodes |= numbers
            known.num_places += 1
            # it mends all places, or it is none
            known.command = known.command and command

    def has(self, rule: Rule) -> bool:
        """Return whether there is a finding of a rule."""
        return any(code == rule.code for code, _ in self._counts)

    def skip(self, line: str) -> None:
        """Note a part that could not be checked, once."""
        if line not in self.unchecked:
            self.unchecked.append(line)

    def findings(self, source: str, fetch: str = "") -> tuple[Finding, ...]:
        """Return the findings: errors first, those of one code together, else in the order of coming.

        Commands name the directory ``source``; ``fetch`` comes before those that edit it.
        """
        made = [_finding(count, source, fetch) for count in self._counts.values()]
        codes = list(dict.fromkeys(finding.code for finding in made))
        return tuple(sorted(made, key=lambda finding: (finding.severity != "error", codes.index(finding.code))))


def _finding(count: _Count, source: str, fetch: str) -> Finding:
    message = f"{count.about}: {count.detail}" if count.about else count.detail
    if count.num_places > 1:
        message += f" (and in {counted(count.num_places - 1, 'more place')})"
    episodes = np.array(sorted(count.episodes), np.int64)
    command = count.command or count.rule.command
    if "{source}" in command:
        command = fetch + command.replace("{source}", shlex.quote(source))
    command = command.replace("{feature}", shlex.quote(count.about))
    return Finding(count.rule.code, count.rule.severity, message, episodes, count.rule.advice, command)


def problem_of(error: Exception) -> str:
    """Return the message of an error, without the advice that a rule gives itself."""
    text = str(error).replace(WHAT_TO_DO, "").strip()
    return text if isinstance(error, FormatError) else f"{type(error).__name__}: {text}"


Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The dataset that the checks look at, and the tally that takes their findings."""

    root: Path
    info: DatasetInfo  # without the features that are wrong in it
    tasks: Sequence[tuple[int, str]] | None  # (task_index, text) in the order of the file; None where it cannot be read
    episodes: EpisodeRecords
    # int64 [n], places in the table of the episodes that are looked at; None: all of the dataset
    chosen: Integers | None
    tally: Tally

    def data_path(self, place: int) -> str | None:
        """Return the path of an episode's data file below the root; None where the table does not have it."""
        episodes = self.episodes
        return self._path(self.info.data_path, int(episodes.data_chunk[place]), int(episodes.data_file[place]))

    def video_path(self, camera: str, place: int) -> str | None:
        """Return the path of an episode's video below the root; None where the table does not have it."""
        spans = self.episodes.videos[camera]
        return self._path(str(self.info.video_path), int(spans.chunk[place]), int(spans.file[place]), camera)

    def members(self, places: Integers, path_of: Callable[[int], str | None]) -> dict[str, Integers]:
        """Return the places of episodes by the path of the file that they are in, in the order of the paths."""
        members: dict[str, list[int]] = {}
        for place in places.tolist():
            path = path_of(place)
            if path is not None:
                members.setdefault(path, []).append(place)
        return {path: np.array(members[path], np.int64) for path in sorted(members)}

    def _path(self, template: str, chunk: int, file: int, camera: str = "") -> str | None:
        if chunk < 0 or file < 0:
            return None
        return template.format(**self.info.file_numbers(chunk, file), video_key=camera)

    @property
    def places(self) -> Integers:
        """Places in the table of the episodes that are looked at."""
        return np.arange(len(self.episodes)) if self.chosen is None else self.chosen
