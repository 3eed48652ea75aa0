"""``stepwell bench``: stream windows of one's own store and say how fast."""

from __future__ import annotations

import argparse
import json

from stepwell.cli.inspecting import name_of
from stepwell.cli.opening import open_given
from stepwell.cli.streaming import stream
from stepwell.loader import Loader
from stepwell.progress import make_bar
from stepwell.store import Store
from stepwell.windows import Field, View

__all__ = ["default_offsets", "run_bench"]

IMAGE_OFFSETS = (-1, 0)
OTHER_OFFSETS = tuple(range(16))


def run_bench(arguments: argparse.Namespace) -> int:
    """Stream a store's windows for some seconds and print the speed."""
    with open_given(arguments) as store:
        offsets = default_offsets(store)
        if arguments.field:
            # a field that is given without offsets takes the default ones; unknown names are refused by the loader
            offsets = {name: given or offsets.get(name, (0,)) for name, given in arguments.field}
        loader = Loader(
            View(store),
            {name: Field(name, list(window)) for name, window in offsets.items()},
            batch_size=arguments.batch_size,
            order=arguments.order,
            threads=arguments.threads,
            page_cache=not arguments.no_page_cache,
            epochs=None,
        )
        with make_bar(None, "windows", name_of(arguments.path)) as bar:
            report = stream(loader, bar, max_seconds=arguments.seconds)
    if arguments.json:
        record = {"path": str(arguments.path), "batch_size": arguments.batch_size, "order": arguments.order}
        record["page_cache"] = not arguments.no_page_cache
        print(
            json.dumps(
                {**record, "fields": {name: list(window) for name, window in offsets.items()}, **report.to_json()}
            )
        )
        return 0
    for name, window in offsets.items():
        print(f"  {name:<{max(map(len, offsets))}}  {_offsets_text(window)}")
    print(report)
    return 0


def default_offsets(store: Store) -> dict[str, tuple[int, ...]]:
    """Return the windows that are streamed when none are given: two steps of each image, sixteen of all else."""
    features = (store.schema or {}).items()
    return {name: IMAGE_OFFSETS if feature.kind == "image" else OTHER_OFFSETS for name, feature in features}


def _offsets_text(offsets: tuple[int, ...]) -> str:
    """Return offsets as `--field` takes them: ``-1,0`` or ``0:16``."""
    is_run = len(offsets) > 2 and offsets == tuple(range(offsets[0], offsets[-1] + 1))
    return f"{offsets[0]}:{offsets[-1] + 1}" if is_run else ",".join(map(str, offsets))
