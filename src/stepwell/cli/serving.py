"""``stepwell serve``: tables of a store, for other processes and machines; ``stepwell top``: what goes on in them."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepwell import replay
from stepwell.errors import MissingDependencyError, StepwellError
from stepwell.replay import Pattern
from stepwell.service import TLS, Client, Server, open_table
from stepwell.sizes import human_bytes
from stepwell.store import open as open_store

__all__ = ["parse_table", "run_serve", "run_top"]

LIMITER = re.compile(r"(MinSize|SampleToInsertRatio|Queue|Stack)\(([^()]*)\)")
# a comma within brackets divides arguments, not options
COMMA = re.compile(r",(?![^()]*\))")
DEFAULT_TABLE = "replay"


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
            raise StepwellError(f"--table {text!r}: {each!r} is none of {', '.join(f'{key}=' for key in readers)}.")
        try:
            options[option] = readers[option](value)
        except ValueError:
            raise StepwellError(f"--table {text!r}: {option}={value!r} cannot be read.") from None
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
    store = open_store(arguments.path)
    tables = [open_table(store, name, **options) for name, options in map(parse_table, arguments.table or ["replay"])]
    token = None if arguments.token_file is None else Path(arguments.token_file).read_text().strip()
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
    print(f"{server.address} serves {', '.join(table.name for table in tables)} of {store.path}", flush=True)
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
    token = None if arguments.token_file is None else Path(arguments.token_file).read_text().strip()
    tls = None if arguments.authority is None else TLS(authority=arguments.authority)
    with Client(arguments.addresses, token=token, tls=tls, timeout=10.0) as client:
        if arguments.json:
            print(json.dumps(dict(zip(client.addresses, client.stats(), strict=True))))
            return 0
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError as error:
            raise MissingDependencyError('stepwell top needs rich: pip install "stepwell[service]"') from error
        console = Console(file=sys.stdout)
        last = client.stats()
        if arguments.once or not console.is_terminal:
            console.print(_screen(client.addresses, last, last, 1.0))
            return 0
        began = time.monotonic()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(client.addresses, client.stats(), last, time.monotonic() - began), refresh=True)
                last, began = client.stats(), time.monotonic()
                time.sleep(arguments.seconds)


def _screen(addresses: list[str], now: list[dict[str, Any]], last: list[dict[str, Any]], seconds: float) -> Any:
    """Return a group of tables: what each server has, who writes and who draws."""
    from rich.console import Group
    from rich.table import Table

    tables = Table(title="tables", title_justify="left", expand=True)
    for name in ("server", "table", "items", "of", "inserts/s", "samples/s", "ratio", "pending", "limiter"):
        tables.add_column(name, justify="left" if name in ("server", "table", "limiter") else "right")
    writers = Table(title="writers", title_justify="left", expand=True)
    for name in ("server", "writer", "steps", "steps/s", "episodes", "state"):
        writers.add_column(name, justify="right" if name in ("steps", "steps/s", "episodes") else "left")
    loaders = Table(title="loaders", title_justify="left", expand=True)
    for name in ("server", "peer", "table", "batches", "rows", "state"):
        loaders.add_column(name, justify="right" if name in ("batches", "rows") else "left")
    for address, one, before in zip(addresses, now, last, strict=True):
        for name, info in one["tables"].items():
            known = before["tables"].get(name, info)["counts"]
            rates = [(info["counts"][key] - known[key]) / seconds for key in ("inserts", "samples")]
            ratio = info["samples_per_insert"]
            tables.add_row(
                address, name, f"{info['size']:,}", f"{info['max_size']:,}", *(f"{rate:,.0f}" for rate in rates),
                "-" if ratio is None else f"{ratio:.2f}", f"{info['num_pending']:,}", info["limiter"]["name"],
            )  # fmt: skip
        steps = {each["name"]: each["steps"] for each in before["writers"]}
        for each in one["writers"]:
            rate = (each["steps"] - steps.get(each["name"], each["steps"])) / seconds
            state = f"held for {each['held_seconds']:.0f} s" if each["held_seconds"] else "connected"
            state = state if each["is_connected"] else "away"
            writers.add_row(address, each["name"], f"{each['steps']:,}", f"{rate:,.0f}", f"{each['episodes']:,}", state)
        for each in one["loaders"]:
            state = f"waits for {each['waits_seconds']:.0f} s" if each["waits_seconds"] else "drawing"
            loaders.add_row(address, each["peer"], each["table"], f"{each['batches']:,}", f"{each['rows']:,}", state)
    values = [f"{name} {human_bytes(value['bytes'])}" for one in now for name, value in one["values"].items()]
    return Group(tables, writers, loaders, f"values: {', '.join(values) or 'none'}")
