"""``stepwell serve``: tables of a store, for other processes and machines; ``stepwell top``: what goes on in them."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from stepwell import replay
from stepwell.cli.terminal import in_a_line
from stepwell.errors import MissingDependencyError, ServiceError, StepwellError
from stepwell.formats.opening import open
from stepwell.replay import Pattern
from stepwell.service import TLS, Client, Server, open_table
from stepwell.sizes import human_bytes

__all__ = ["Look", "make_screen", "parse_table", "read_token", "run_serve", "run_top"]

LIMITER = re.compile(r"(MinSize|SampleToInsertRatio|Queue|Stack)\(([^()]*)\)")
# a comma within brackets divides arguments, not options
COMMA = re.compile(r",(?![^()]*\))")
LIMITERS = "MinSize(ITEMS), SampleToInsertRatio(RATIO, MIN_SIZE, ERROR_BUFFER), Queue(ITEMS) or Stack(ITEMS)"
# writers or loaders of a server on the screen
MAX_SHOWN = 20


def parse_table(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a table: ``NAME[:OPTION=VALUE,...]``.

    Example:
        >>> parse_table("recent:sampler=prioritized(0.6),max_size=1000,length=4")
        ('recent', {'sampler': 'prioritized(0.6)', 'max_size': 1000, 'pattern': Pattern(length=4, ...)})
    """
    name, _, rest = text.partition(":")
    readers: Mapping[str, Callable[[str], Any]] = {
        "sampler": str,
        "remover": str,
        "max_size": int,
        "max_times_sampled": int,
        "seed": int,
        "limiter": _limiter,
        "length": int,
        "ahead": int,
        "every": int,
    }
    options: dict[str, Any] = {}
    for each in filter(None, COMMA.split(rest)):
        option, is_given, value = each.partition("=")
        if not is_given or option not in readers:
            allowed = ", ".join(f"{key}=" for key in readers)
            raise StepwellError(f"--table {text!r}: {each!r} is no option of a table. Allowed: {allowed}.")
        try:
            options[option] = readers[option](value)
        except StepwellError as error:
            raise StepwellError(f"--table {text!r}: {error}") from None
        except (TypeError, ValueError):
            allowed = LIMITERS if option == "limiter" else "a whole number"
            raise StepwellError(f"--table {text!r}: {option}={value!r} cannot be read. Allowed: {allowed}.") from None
    pattern = {key: options.pop(key) for key in ("length", "ahead", "every") if key in options}
    return name, options | ({"pattern": Pattern(**pattern)} if pattern else {})


def _limiter(text: str) -> Any:
    found = LIMITER.fullmatch(text)
    if found is None:
        raise ValueError(text)
    numbers = [float(each) if "." in each else int(each) for each in found[2].split(",") if each.strip()]
    return getattr(replay, found[1])(*numbers)


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve tables until a signal comes."""
    store = open(arguments.path)
    tables = [open_table(store, name, **options) for name, options in map(parse_table, arguments.table or ["replay"])]
    token = read_token(arguments.token_file)
    has_tls = arguments.certificate or arguments.key or arguments.authority
    server = Server(
        tables,
        arguments.address,
        tls=TLS(arguments.certificate, arguments.key, arguments.authority) if has_tls else None,
        token=token,
        insecure=arguments.insecure,
        checkpoints=arguments.checkpoints,
        metrics=arguments.metrics,
    )
    names = ", ".join(table.name for table in tables)
    print(f"{server.address} serves {names} of {store.path}; Ctrl-C stops it", flush=True)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    while not stopping.wait(0.5):
        if not server.is_running:
            return 1
    server.stop()
    print("stopped; the tables are saved beside the store", flush=True)
    return 0


def run_top(arguments: argparse.Namespace) -> int:
    """Show the tables of servers, once or until Ctrl-C."""
    token = read_token(arguments.token_file)
    tls = None if arguments.authority is None else TLS(authority=arguments.authority)
    # one that is away is shown as such, beside the others
    seconds = 3.0 if arguments.once or arguments.json else max(arguments.seconds, 1.0)
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))
        clients = {
            each: stack.enter_context(Client(each, token=token, tls=tls, timeout=seconds))
            for each in arguments.addresses
        }
        looks = [_look(clients)]
        if all("error" in each for each in looks[0].stats.values()):
            raise ServiceError(next(iter(looks[0].stats.values()))["error"])
        code = int(any("error" in each for each in looks[0].stats.values()))
        if arguments.json:
            print(json.dumps(looks[0].stats))
            return code
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError as error:
            raise MissingDependencyError.of("rich", "service") from error
        console = Console(file=sys.stdout)
        if arguments.once or not console.is_terminal:
            # two looks, since rates are of the time between them
            time.sleep(arguments.seconds)
            console.print(make_screen(looks[0], _look(clients)))
            return code
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(arguments.seconds if len(looks) > 1 else min(arguments.seconds, 0.5))
                looks = [looks[-1], _look(clients)]
                live.update(make_screen(*looks), refresh=True)
    return 0


def read_token(path: str | None) -> str | None:
    """Return the text of ``--token-file``."""
    if path is None:
        return None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StepwellError(f"--token-file {path}: {error}. Give a file that holds the token, as text.") from None


class Look(NamedTuple):
    """What servers said at a moment.

    Args:
        seconds: of a monotonic clock.
        stats: address to what `Client.stats` has of it, or to ``{"error": text}``.
    """

    seconds: float
    stats: dict[str, dict[str, Any]]


def _look(clients: Mapping[str, Client]) -> Look:
    stats: dict[str, dict[str, Any]] = {}
    for address, client in clients.items():
        try:
            (found,) = client.stats()
            stats[address] = _visible(found)
        except ServiceError as error:
            stats[address] = {"error": str(error)}
    return Look(time.monotonic(), stats)


def _visible(value: Any) -> Any:
    """Return what a server said, with texts of one line that no terminal obeys."""
    if isinstance(value, dict):
        return {in_a_line(name) if isinstance(name, str) else name: _visible(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(each) for each in value]
    return in_a_line(value) if isinstance(value, str) else value


def make_screen(before: Look, now: Look) -> Any:
    """Return what rich prints: of each server its tables, then who writes and who draws, and rates since ``before``."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    seconds = max(now.seconds - before.seconds, 1e-9)
    parts: list[Any] = []
    for address, one in now.stats.items():
        if "error" in one:
            text = one["error"].removeprefix(f"{address}: ")
            parts += [Text(f"{address}  away", "bold red"), Padding(Text(text, "red"), (0, 0, 1, 2))]
            continue
        known = before.stats[address]
        known = one if "error" in known else known
        parts.append(Text.assemble((address, "bold"), f"  {one['store']}  up {_duration(one['uptime'])}"))
        for make in (_table_of_tables, _table_of_writers, _table_of_loaders, _table_of_values):
            table = make(one, known, seconds)
            if table.row_count:
                parts.append(Padding(table, (0, 0, 1, 2)))
    return Group(*parts)


def _table_of_tables(one: dict[str, Any], known: dict[str, Any], seconds: float) -> Any:
    table = _empty("table", ">items", "", ">inserts/s", ">samples/s", ">ratio", "limiter")
    for name, info in one["tables"].items():
        counts = known["tables"].get(name, info)["counts"]
        rates = (_rate(info["counts"][key], counts[key], seconds) for key in ("inserts", "samples"))
        ratio, pending = info["samples_per_insert"], info["num_pending"]
        waiting = f"  {pending:,} wait" if pending else ""
        cells = [f"{info['size']:,}", f"of {info['max_size']:,}", *rates, "-" if ratio is None else f"{ratio:.2f}"]
        _add_row(table, [name, *cells, f"{info['limiter']['name']}{waiting}"])
    return table


def _table_of_writers(one: dict[str, Any], known: dict[str, Any], seconds: float) -> Any:
    steps = {each["name"]: each["steps"] for each in known["writers"]}
    # those that are held first, those that are away last
    rank = {"held": 0, "connected": 1, "away": 2}
    found = []
    for each in one["writers"]:
        state = ("held" if each["held_seconds"] else "connected") if each["is_connected"] else "away"
        shown = f"held by a limiter, {_duration(each['held_seconds'])}" if state == "held" else state
        rate = _rate(each["steps"], steps.get(each["name"], each["steps"]), seconds)
        row = each["name"], f"{each['steps']:,}", rate, f"{each['episodes']:,}", shown
        found.append((rank[state], row))
    return _rows(found, "writer", ">steps", ">steps/s", ">episodes", "state")


def _table_of_loaders(one: dict[str, Any], known: dict[str, Any], seconds: float) -> Any:
    rows = {each["id"]: each["rows"] for each in known["loaders"]}
    found = []
    for each in one["loaders"]:
        waits = each["waits_seconds"]
        state = f"waits for a limiter, {_duration(waits)}" if waits else "connected"
        rate = _rate(each["rows"], rows.get(each["id"], each["rows"]), seconds)
        found.append((0 if waits else 1, (each["peer"], each["table"], f"{each['rows']:,}", rate, state)))
    return _rows(found, "loader", "table", ">rows", ">rows/s", "state")


def _table_of_values(one: dict[str, Any], known: dict[str, Any], _: float) -> Any:
    found = []
    for name, value in one["values"].items():
        is_new = known["values"].get(name, value)["version"] != value["version"]
        found.append((0, (name, human_bytes(value["bytes"]), "published just now" if is_new else "")))
    return _rows(found, "value", ">bytes", "")


def _rows(found: Sequence[tuple[int, tuple[str, ...]]], *names: str) -> Any:
    """Return a table of the first rows by their rank, and how many more there are."""
    table = _empty(*names)
    for _, row in sorted(found, key=lambda each: each[0])[:MAX_SHOWN]:
        _add_row(table, row)
    if (more := len(found) - MAX_SHOWN) > 0:
        _add_row(table, [f"and {more:,} more", *[""] * (len(names) - 1)])
    return table


def _add_row(table: Any, cells: Iterable[str]) -> None:
    from rich.text import Text

    # as texts: in a name "[red]" is no colour
    table.add_row(*map(Text, cells))


def _empty(*names: str) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        # where a screen is narrow the last column is given two lines, and no number is cut
        justify: Any = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=justify, overflow="fold", no_wrap=name is not names[-1])
    return table


def _rate(now: int, before: int, seconds: float) -> str:
    # a table that was reset counts anew
    return f"{max(now - before, 0) / seconds:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
