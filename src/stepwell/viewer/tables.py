"""The endpoints of the page of served tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.errors import MissingDependencyError, ServiceError
from stepwell.viewer.site import Answer, Site, to_json

if TYPE_CHECKING:
    from stepwell.service import Client

__all__ = ["is_server", "make_tables_app"]

FILES = {
    "/": "tables.html",
    "/common.js": "common.js",
    "/tables.js": "tables.js",
    "/viewer.css": "viewer.css",
}
ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}|unix:.+")


def is_server(place: str | Path) -> bool:
    """Whether a place is the address of a server of tables, and nothing on this machine's disk.

    Example:
        >>> is_server("127.0.0.1:7070"), is_server("unix:/tmp/tables"), is_server("lerobot://a/b"), is_server("a.well")
        (True, True, False, False)
    """
    text = str(place)
    return ADDRESS.fullmatch(text) is not None and "://" not in text and not Path(text).exists()


def make_tables_app(client: Client, token: str | None = None, *, hosts: Sequence[str] | None = None) -> Any:
    """Return the ASGI application that shows the tables of a server; it changes nothing there.

    Args:
        client: of one server, with a short ``timeout``: so long an answer waits for one that is away.
        token: see `stepwell.viewer.app.make_app`.
        hosts: see `stepwell.viewer.app.make_app`.

    Raises:
        MissingDependencyError: Starlette is missing.
    """
    try:
        from starlette.routing import Route
    except ImportError:
        raise MissingDependencyError.of("starlette", "view") from None
    site = Site(FILES, token, hosts)

    def stats(request: Any) -> Answer:
        (found,) = client.stats()
        return to_json({"address": client.addresses[0], **found})

    def spread(request: Any) -> Answer:
        try:
            (found,) = client.spread()
        except ServiceError as error:
            # of an older release
            if "protocol" not in str(error):
                raise
            found = {}
        return to_json(found)

    return site.application(
        [Route("/api/stats", site.reads(stats)), Route("/api/spread", site.reads(spread))],
    )
