"""Lets torchvision be imported beside a torch that it was not built for: goes into the environments of lerobot.

The wheels of torchvision are built for torch with CUDA, and what they compiled does not load beside the CPU build of
our tests. lerobot uses none of it, but torchvision's Python says of its operators how they behave, and that fails where
they are not known. So they are made known, without doing anything.
"""

import re
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

REGISTRATIONS = "torchvision/_meta_registrations.py"
KEPT = []


class Operators(MetaPathFinder):
    """Finds no module; when torchvision is looked for, names its operators first."""

    def find_spec(self, name, path=None, target=None):
        """Return None."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            define_operators()


def define_operators():
    """Name the operators that torchvision's Python speaks of."""
    import torch

    source = next(path for path in (Path(entry, REGISTRATIONS) for entry in sys.path) if path.exists()).read_text()
    names = {*re.findall(r'register_meta\("(\w+)"', source), *re.findall(r"torchvision::(\w+)", source)}
    library = torch.library.Library("torchvision", "DEF")
    # what it names is gone when it is
    KEPT.append(library)
    for name in sorted(names):
        library.define(f"{name}(Tensor x) -> Tensor")


sys.meta_path.insert(0, Operators())
