"""memory: the reader's own memory over three random epochs of a store larger than it may use.

A fresh process may have a fourth of the store's size as data (``RLIMIT_DATA``: the heap and private maps, not files);
it would fail if it kept what it read. Its anonymous memory (RssAnon, page cache aside) is taken after each epoch; the
"rival" is the same process after its first epoch, so a ratio of 1 is flat.
"""

from __future__ import annotations

from collections.abc import Iterator

from children import run_child
from datasets import LOW_DIM, low_dim_store, removed
from report import Row, within
from timing import Settings, memcpy_gb_per_s

import stepwell

__all__ = ["run"]

NAME = "memory"
FLAT = 0.95
IMAGE = {"image": stepwell.Array((96, 96, 3), dtype="uint8")}

EPOCHS = """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (argument["limit"],) * 2)
import stepwell
store = stepwell.open(argument["path"], mode="r")
fields = {name: [-1, 0] for name in store.schema}
loader = stepwell.Loader(store, fields, batch_size=argument["batch"], order="random", threads=argument["threads"])
found = []
for epoch in range(3):
    steps = sum(len(batch[name]) for batch in loader for name in list(fields)[:1])
    assert steps == store.num_steps
    found.append(anonymous() / 1e6)
print(json.dumps(found))
"""


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row for windows of images, by threads, and one for small features, by the consumer."""
    memcpy = memcpy_gb_per_s(settings)
    limit = settings.sized(settings.store_bytes // 4, 512 << 20)
    for name, features, batch, threads in (("images", IMAGE, 64, 2), ("5 features", LOW_DIM, 1024, 0)):
        with removed(low_dim_store(settings.data / f"{name}.well", settings.store_bytes, features)) as store:
            argument = {"path": str(store.path), "limit": limit, "batch": batch, "threads": threads}
            runs = [run_child(EPOCHS, argument) for _ in range(settings.sized(5, 1))]
        case = f"{name}, {settings.store_bytes >> 20} MiB of store, at most {limit >> 20} MiB of memory"
        last, first = [found[-1] for found in runs], [found[0] for found in runs]
        yield within(NAME, case, "after epoch 1", last, first, unit="MB", target=FLAT, memcpy_gb_per_s=memcpy)
