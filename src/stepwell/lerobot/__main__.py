"""Run a module of LeRobot with stepwell's classes: ``python -m stepwell.lerobot lerobot.scripts.lerobot_train ...``."""

from __future__ import annotations

import runpy
import sys

from stepwell.lerobot.installing import install


def main() -> None:
    """Run the module that the first argument names, with the others."""
    if len(sys.argv) < 2:
        sys.exit("Usage: python -m stepwell.lerobot MODULE [ARGUMENT ...], such as lerobot.scripts.lerobot_train")
    del sys.argv[0]
    install()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
