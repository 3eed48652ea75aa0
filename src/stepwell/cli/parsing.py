"""The parser of the command: what argparse does, with suggestions, help that fits the terminal, and shared options.

Standard library only, as `stepwell.cli.main`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from stepwell.cli.argument_types import place, setting
from stepwell.cli.terminal import fold, width_of
from stepwell.errors import did_you_mean

__all__ = [
    "Help",
    "Parser",
    "Verbs",
    "add_import_and_trust",
    "add_json",
    "add_path_and_json",
    "add_repeated",
    "add_verb",
    "add_where",
    "add_with",
    "completed_by",
]

COMMENT = re.compile(r"(?P<command> *\S.*?\S) {2,}(?P<comment>\S.*)")
EXAMPLES_END = "\n\nexit codes:"
# what other commands call it; nothing that is spelled nearly so
OTHER_NAMES = {
    "list": "ls", "delete": "rm", "remove": "rm", "cat": "head", "open": "view", "visualize": "view",
    "visualise": "view", "browse": "view", "import": "convert", "check": "verify", "validate": "verify",
    "describe": "info", "summary": "info", "statistics": "stats", "concat": "merge", "compare": "diff",
    "version": "--version", "--format": "--to", "--output": "--out", "--filter": "--where", "--force": "--yes",
    "--limit": "--first",
}  # fmt: skip


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose examples fit the terminal: what is said of a command stands below it where both are too wide."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        width = width_of() or 0
        lines = text.splitlines()
        if not width:
            return "\n".join(lines)
        return "\n".join(part for line in lines for part in _example(line, width))


def _example(line: str, width: int) -> list[str]:
    found = COMMENT.fullmatch(line)
    if len(line) <= width or found is None:
        return [fold(line, width)]
    return [fold(found["command"], width), fold(f"      {found['comment']}", width)]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: what was given, what is spelled nearly so, where help is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", Help)
        super().__init__(*arguments, **options)
        line = "print the traceback of an error, too"
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=line)
        # the innermost parser of a command line: its options are those that were meant
        self.set_defaults(parser=self)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse a whole command line."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            innermost = found.parser
            options = [each for action in innermost._actions for each in action.option_strings]
            told = _meant(rest[0].partition("=")[0], options) if rest[0].startswith("-") else ""
            innermost.error(f"{' '.join(rest)} is not understood.{told}")
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            what = str(action.metavar or "choice").lower()
            # it has no name that could be put before the message
            told = _meant(str(value), [*known, "--version"] if what == "verb" else known)
            self.error(f"there is no {what} {value!r}.{told} There are: {', '.join(known)}.")
        raise argparse.ArgumentError(action, f"{value!r}.{did_you_mean(str(value), known)} Allowed: {', '.join(known)}")

    def error(self, message: str) -> NoReturn:
        """Print one line and end with the exit code 2."""
        stop = "" if message.endswith((".", "?")) else "."
        text = f"{self.prog}: error: {message}{stop} See {self.prog} --help"
        self.exit(2, f"{fold(text, width_of(sys.stderr))}\n")


def _meant(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names what another command's word is here, or what is spelled nearly so."""
    known = list(known)
    other = OTHER_NAMES.get(name.lower())
    return f" Here it is {other}." if other in known else did_you_mean(name, known)


Verbs = argparse._SubParsersAction
Completer = Callable[..., Iterable[str]]


def completed_by(action: argparse.Action, completer: str) -> argparse.Action:
    """Let the shell complete an option's values by a function of `stepwell.cli.completing`; see there."""

    def complete(**given: Any) -> Iterable[str]:
        from importlib import import_module

        found: Iterable[str] = getattr(import_module("stepwell.cli.completing"), completer)(**given)
        return found

    action.completer = complete  # type: ignore[attr-defined]  # where argcomplete looks for it
    return action


def add_verb(verbs: Verbs[Any], run: str, name: str, line: str, examples: str) -> Parser:
    """Return the parser of a new verb.

    Args:
        verbs: of the command.
        run: ``MODULE:FUNCTION`` below `stepwell.cli`.
        name: the verb.
        line: what it does, in a line.
        examples: a line each, indented by two.
    """
    parser: Parser = verbs.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + ".", epilog=f"examples:\n{examples}"
    )
    parser.set_defaults(run=run)
    return parser


def add_path_and_json(parser: argparse.ArgumentParser) -> None:
    """Add what every verb has that reads one store or data set."""
    parser.add_argument("path", type=place, metavar="PATH", help="directory of the store, or an address: FORMAT://PATH")
    add_with(parser, "an option of the address's reader, such as split=val")
    add_json(parser)
    add_import_and_trust(parser)


def add_repeated(
    parser: argparse.ArgumentParser,
    flag: str,
    metavar: str,
    line: str,
    *,
    dest: str | None = None,
    type: Callable[[str], Any] = str,
) -> argparse.Action:
    """Add a flag that may be given several times; none is an empty list."""
    dest = dest or flag.removeprefix("--")
    help_line = f"{line}; may be repeated"
    return parser.add_argument(flag, dest=dest, action="append", default=[], type=type, metavar=metavar, help=help_line)


def add_with(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--with``."""
    add_repeated(parser, "--with", "OPTION=VALUE", what, dest="settings", type=setting)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add ``--where``."""
    line = "only episodes that meet a condition, such as 'length > 100 and not success'; names are those that ls shows"
    completed_by(parser.add_argument("--where", metavar="CONDITION", help=line), "facts_of_path")


def add_import_and_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--import`` and ``--trust``."""
    line = "import a module first: one that registers a codec of your own"
    add_repeated(parser, "--import", "MODULE", line, dest="modules")
    line = "a directory that links of the data set and references of the store may lead to"
    add_repeated(parser, "--trust", "DIR", line, dest="trusted")
