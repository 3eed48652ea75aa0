"""``stepwell warm``: compile all kernels before they are needed."""

from __future__ import annotations

import argparse
import time

from stepwell.progress import make_bar

__all__ = ["run_warm"]


def run_warm(arguments: argparse.Namespace) -> int:
    """Compile what is not compiled yet, and say how much that was."""
    from stepwell.kernels import signatures

    begun, num_compiled = time.perf_counter(), 0
    total = sum(map(len, signatures.known_signatures().values()))
    with make_bar(total, "kernels", "compiling") as bar:
        for _, is_compiled in signatures.compile_all():
            num_compiled += is_compiled
            bar.update(1)
    print(f"{total} kernels, of which {num_compiled} were compiled, in {time.perf_counter() - begun:.1f} s")
    return 0
