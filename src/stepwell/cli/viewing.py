"""``stepwell view``: a page that shows the episodes of a store."""

from __future__ import annotations

import argparse
import secrets

from stepwell.cli.inspecting import open_given
from stepwell.errors import MissingDependencyError
from stepwell.viewer.app import LOCAL_HOSTS, make_app

__all__ = ["run_view"]


def run_view(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or print its address and leave."""
    try:
        import uvicorn
    except ImportError:
        raise MissingDependencyError.of("uvicorn", "view") from None
    token = None if arguments.host in LOCAL_HOSTS else secrets.token_urlsafe(16)
    with open_given(arguments) as store:
        app = make_app(store, token)
        query = "" if token is None else f"?token={token}"
        print(f"http://{arguments.host}:{arguments.port}/{query} shows {store.num_episodes} episodes", flush=True)
        if not arguments.once:
            uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning")
    return 0
