"""TorchRL makes "spawn" the way in which its process starts others; tests of other folders keep the system's way."""

import multiprocessing
from contextlib import suppress

with suppress(ImportError):
    import torchrl  # noqa: F401

    multiprocessing.set_start_method(None, force=True)
