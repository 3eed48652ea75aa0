"""Run benchmarks: ``python benchmarks/run.py NAME`` prints one JSON object a line; ``--list`` prints the names."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
BUSY_LOAD = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(NAMES))
        return 0
    if not options.names:
        _parser().error(f"which benchmark? One of: {', '.join(NAMES)}")
    _pin_threads()
    # loads numpy, which reads the environment
    from timing import Settings

    if os.getloadavg()[0] > BUSY_LOAD and not options.quick:
        print(f"the machine is busy: load {os.getloadavg()[0]:.2f}. Ratios hold better than figures.", file=sys.stderr)
    for name in options.names:
        with tempfile.TemporaryDirectory(prefix="stepwell-bench-", dir=options.data) as data:
            if options.quick:
                settings = Settings(Path(data), is_quick=True, rounds=1, block_seconds=0.002, store_bytes=1 << 20)
            else:
                settings = Settings(Path(data), rounds=options.rounds, block_seconds=options.seconds)
            for row in importlib.import_module(f"bench_{name}").run(settings):
                if row.skipped:
                    print(f"{row.bench}: {row.skipped}: {row.case} is left out.", file=sys.stderr)
                print(row.to_json(), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__)
    told = f"{', '.join(NAMES)}. Several run in one process, one after the other: figures are best of one alone"
    parser.add_argument("names", nargs="*", type=_known, metavar="NAME", help=told)
    parser.add_argument("--list", action="store_true", help="print the names, one a line")
    parser.add_argument("--quick", action="store_true", help="toy sizes: shows that it works; the figures mean nothing")
    parser.add_argument(
        "--data", metavar="DIR", help="where to make stores of up to 3 GB (default: the temp directory)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (default 9)")
    parser.add_argument("--seconds", type=float, default=0.25, help="of a turn (default 0.25)")
    return parser


def _known(name: str) -> str:
    if name not in NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NAMES)}")
    return name


def _pin_threads() -> None:
    """Let rivals compute in one thread, as stepwell does where nothing else is said."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"


if __name__ == "__main__":
    sys.exit(main())
