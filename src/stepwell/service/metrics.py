"""Metrics of a server for Prometheus, at /metrics of an address of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stepwell.errors import MissingDependencyError, ServiceError
from stepwell.service.settings import UNIX, is_loopback, parse_address

__all__ = ["serve_metrics"]

COUNTS = ("inserts", "samples", "deletes", "updates")


class _Collector:
    """Makes the metrics of a server's stats when they are asked for."""

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Any]:
        """Yield families of metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._stats()
        for name in COUNTS:
            family = CounterMetricFamily(f"stepwell_{name}", f"{name} of items of a table", labels=["table"])
            for table, info in stats["tables"].items():
                family.add_metric([table], info["counts"][name])
            yield family
        for name, key, what in (
            ("items", "size", "items of a table"),
            ("pending_items", "num_pending", "items that wait for the limiter"),
        ):
            gauge = GaugeMetricFamily(f"stepwell_{name}", what, labels=["table"])
            for table, info in stats["tables"].items():
                gauge.add_metric([table], info[key])
            yield gauge
        writers, loaders = stats["writers"], stats["loaders"]
        yield CounterMetricFamily("stepwell_steps", "steps that writers sent to this server", value=stats["steps"])
        for name, what, value in (
            ("connected_writers", "writers that are connected", sum(each["is_connected"] for each in writers)),
            ("held_writers", "writers that a limiter holds", sum(each["held_seconds"] > 0 for each in writers)),
            ("connected_loaders", "loaders that are connected", len(loaders)),
            ("waiting_loaders", "loaders that a limiter holds", sum(each["waits_seconds"] > 0 for each in loaders)),
            ("value_bytes", "bytes of published values", sum(each["bytes"] for each in stats["values"].values())),
        ):
            yield GaugeMetricFamily(f"stepwell_{name}", what, value=value)


def serve_metrics(address: str, stats: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    """Serve metrics, which anybody may read, in a thread, to this machine only; returns what ends it."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise MissingDependencyError.of("prometheus-client", "service") from error
    host, _, port = parse_address(address).rpartition(":")
    if address.startswith(UNIX) or not is_loopback(host):
        raise ServiceError(
            f"metrics at {address}: anybody who reaches them may read them, so they are served to this machine only. "
            "Give 127.0.0.1:PORT, and let a proxy there show them to others."
        )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(stats))
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise ServiceError(f"cannot serve metrics at {address}: {error.strerror}. Give another port.") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
