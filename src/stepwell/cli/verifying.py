"""``stepwell verify``: every byte of a store against its checksum; what breaks training from a LeRobot dataset."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from stepwell.cli.opening import open_given
from stepwell.errors import EpisodeNotFoundError, StepwellError, StoreNotFoundError
from stepwell.files.addresses import plain_address
from stepwell.formats.opening import point_to_reader
from stepwell.formats.registry import scheme_of
from stepwell.lerobot.auditing import audit, is_lerobot
from stepwell.progress import make_bar
from stepwell.sizes import counted, human_bytes
from stepwell.store import Store
from stepwell.store.layout import SEGMENTS, STORE_JSON
from stepwell.store.verify import Report, verify_store

__all__ = ["run_verify"]


def run_verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong; the exit code is 1 when something is, and 0 when there are warnings only."""
    if is_lerobot(arguments.path):
        if arguments.settings:
            raise StepwellError("--with is of other data sets than LeRobot's. There are --episodes and --deep.")
        return _run_audit(arguments)
    if arguments.episodes is not None:
        raise StepwellError(f"{arguments.path} is no LeRobot dataset: leave out --episodes, a store is verified whole.")
    if scheme_of(str(arguments.path)) is not None:
        with open_given(arguments) as store:
            return _verify(store, store.address or plain_address(arguments.path), arguments)
    # a store that is too damaged to open is verified all the same, so it is not opened here
    if not any((arguments.path / part).exists() for part in (STORE_JSON, SEGMENTS)):
        fault = StoreNotFoundError(f"no store at {arguments.path}: there is neither {STORE_JSON} nor {SEGMENTS}.")
        point_to_reader(str(arguments.path), fault)
        raise fault
    if arguments.settings:
        raise StepwellError(f"--with is of addresses, and {arguments.path} is a store. Leave it out.")
    return _verify(arguments.path, str(arguments.path), arguments)


def _verify(store: Store | Path, called: str, arguments: argparse.Namespace) -> int:
    with make_bar(None, "B", "verifying") as bar:

        def tell(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = replace(verify_store(store, deep=arguments.deep, progress=tell), path=called)
    if arguments.json:
        print(json.dumps({**asdict(report), "is_ok": report.is_ok}, indent=2))
    else:
        _print_report(report)
    return 0 if report.is_ok else 1


def _run_audit(arguments: argparse.Namespace) -> int:
    episodes = None if arguments.episodes is None else [arguments.episodes]
    report = audit(arguments.path, episodes=episodes, deep=arguments.deep)
    if arguments.episodes is not None and not report.num_episodes and report.is_ok:
        raise EpisodeNotFoundError(
            f"--episodes: none of {arguments.path} is in this range: there was nothing to verify."
        )
    print(json.dumps(report.to_json(), indent=2) if arguments.json else report)
    return 0 if report.is_ok else 1


def _print_report(report: Report) -> None:
    segments = counted(report.num_segments, "segment")
    verdict = "all as written" if report.is_ok else f"{len(report.findings)} damaged"
    files = f", {counted(report.num_files, 'file')} in place with sizes and times" if report.num_files else ""
    print(f"{report.path}: {segments}, {human_bytes(report.num_bytes)} compared with checksums{files}, {verdict}")
    for finding in report.findings:
        print(f"  {finding}")
