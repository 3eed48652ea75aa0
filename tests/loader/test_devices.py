"""What is copied to a GPU when: against a stand-in, since the tests' machine has none."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepwell.errors import LoaderError, OrderError
from stepwell.loader import Loader
from stepwell.loader.batch import Batch
from stepwell.loader.devices import DeviceSource, TorchCopier, find_device
from stepwell.loader.settings import LoaderSettings
from stepwell.store import Store

torch = pytest.importorskip("torch")


class Tensor:
    """A tensor that writes down what is done to it."""

    def __init__(self, log: list, name: str) -> None:
        self.log, self.name = log, name

    def to(self, device: str, *, non_blocking: bool) -> "Tensor":
        assert non_blocking
        self.log.append(f"copy {self.name} on {self.log.stream}")
        return Tensor(self.log, f"{self.name}@{device}")

    def record_stream(self, stream: "Stream") -> None:
        self.log.append(f"{self.name} is used on {stream.name}")


class Stream:
    def __init__(self, log: list, name: str) -> None:
        self.log, self.name, self.count = log, name, 0

    def record_event(self) -> str:
        self.count += 1
        self.log.append(f"event {self.count}")
        return f"{self.count}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


class Log(list):
    stream = "main"


class FakeTorch:
    """Streams and events of a GPU that is not there."""

    def __init__(self, log: Log) -> None:
        main = Stream(log, "main")

        @contextmanager
        def stream(own: Stream):
            log.stream = own.name
            yield
            log.stream = "main"

        self.cuda = SimpleNamespace(
            Stream=lambda device: Stream(log, "own"), stream=stream, current_stream=lambda device: main
        )

    @staticmethod
    def is_tensor(value: Any) -> bool:
        return isinstance(value, Tensor)


class Source:
    """Batches of one tensor, of which some are built already."""

    def __init__(self, log: Log, products: list, num_ready: int) -> None:
        self.log, self.products, self.num_ready, self.is_closed = log, products, num_ready, False

    @property
    def is_ready(self) -> bool:
        return self.num_ready > 0 and bool(self.products)

    def take(self):
        self.num_ready -= 1
        if not self.products:
            raise StopIteration
        product = self.products.pop(0)
        if isinstance(product, Exception):
            raise product
        return product, Batch({"x": {"y": Tensor(self.log, f"t{product}")}, "text": "as it is"}, 0, product)

    def close(self) -> None:
        self.is_closed = True


def test_the_next_batch_is_copied_before_this_one_is_handed_over_and_nobody_waits_but_the_stream() -> None:
    log = Log()
    source = DeviceSource(Source(log, [0, 1], 2), TorchCopier("gpu", FakeTorch(log)))
    ticket, batch = source.take()
    assert (ticket, batch.index, batch["text"], batch["x"]["y"].name) == (0, 0, "as it is", "t0@gpu")
    assert log == [
        "copy t0 on own",
        "event 1",
        "copy t1 on own",
        "event 2",
        "main waits for 1",
        "t0@gpu is used on main",
    ]
    del log[:]
    assert source.take()[0] == 1
    assert log == ["main waits for 2", "t1@gpu is used on main"]
    with pytest.raises(StopIteration):
        source.take()


def test_a_batch_that_is_not_built_yet_is_not_waited_for() -> None:
    log = Log()
    source = DeviceSource(Source(log, [0, 1], 1), TorchCopier("gpu", FakeTorch(log)))
    source.take()
    assert not any("t1" in line for line in log)
    assert source.take()[0] == 1


def test_the_error_of_the_next_batch_comes_in_its_place() -> None:
    log = Log()
    inner = Source(log, [0, ValueError("one"), 2], 9)
    source = DeviceSource(inner, TorchCopier("gpu", FakeTorch(log)))
    assert source.take()[0] == 0
    with pytest.raises(ValueError, match="one"):
        source.take()
    source.close()
    assert inner.is_closed


def test_cpu_is_where_batches_are(store: Store) -> None:
    assert find_device("cpu", torch) is None
    loader = Loader(store, {"number": "number"}, batch_size=4, to="torch", device="cpu", threads=2)
    assert [n for batch in loader for n in batch["number"].tolist()][:3] == [0, 1, 2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_cuda_where_there_is_none_is_refused_when_the_loader_is_made(store: Store) -> None:
    with pytest.raises(LoaderError, match="torch finds 0 CUDA devices"):
        Loader(store, {"number": "number"}, to="torch", device="cuda")


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:x"])
def test_a_device_that_is_none_says_which_are(name: str) -> None:
    with pytest.raises(OrderError, match=r'"cuda:N"'):
        find_device(name, torch)


def test_a_device_needs_torch() -> None:
    with pytest.raises(OrderError, match="device='cuda' needs"):
        LoaderSettings(device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("threads", [0, 2])
def test_batches_on_a_gpu_are_those_of_the_cpu(store: Store, threads: int) -> None:
    fields = {"number": "number", "image": "observation.image"}
    here = list(Loader(store, fields, batch_size=4, order="random", threads=threads))
    there = Loader(store, fields, batch_size=4, order="random", threads=threads, to="torch", device="cuda", pad=False)
    for a, b in zip(here, there, strict=True):
        assert b["image"].is_cuda
        np.testing.assert_array_equal(a["image"], b["image"].cpu().numpy())
