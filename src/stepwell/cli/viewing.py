"""``stepwell view``: a page that shows a store or served tables; ``stepwell export --to html | mp4 | rrd``: of one."""

from __future__ import annotations

import argparse
import errno
import json
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from stepwell.cli.inspecting import open_given
from stepwell.cli.terminal import print_folded
from stepwell.errors import EpisodeNotFoundError, MissingDependencyError, StepwellError
from stepwell.formats.opening import is_store, open
from stepwell.sizes import counted, human_bytes
from stepwell.store import Store
from stepwell.viewer.app import make_app
from stepwell.viewer.exporting import export_episode
from stepwell.viewer.site import LOCAL_HOSTS
from stepwell.viewer.tables import is_server, make_tables_app

__all__ = ["run_export_episode", "run_view"]

# that a server of tables may take to answer
TABLES_SECONDS = 3.0
# where no other process listens there, else one of the next ones
DEFAULT_PORT = 7080
NUM_PORTS = 20
# flags of `stepwell export` that say nothing of a file of one episode
OF_DATA_SETS = ("task", "append", "rename", "workers", "executor", "episodes", "where")


def run_view(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or print its address and leave."""
    is_local = arguments.host in LOCAL_HOSTS
    token = None if is_local and not arguments.edit else secrets.token_urlsafe(16)
    hosts = LOCAL_HOSTS if is_local else None
    if is_server(arguments.path):
        return _view_tables(arguments, token, hosts)
    with _opened(arguments) as store:
        app = make_app(store, token, edit=arguments.edit, hosts=hosts)
        _serve(app, arguments, token, counted(store.num_episodes, "episode"))
    return 0


def _view_tables(arguments: argparse.Namespace, token: str | None, hosts: Sequence[str] | None) -> int:
    """Serve the page of a server's tables."""
    # tables and their kernels take as long to load as all of a store's page
    from stepwell.cli.serving import read_token
    from stepwell.service import TLS, Client

    if arguments.edit:
        raise StepwellError(f"--edit is of stores; {arguments.path} is the address of a server. Leave it out.")
    tls = None if arguments.authority is None else TLS(authority=arguments.authority)
    with Client(str(arguments.path), token=read_token(arguments.token_file), tls=tls, timeout=TABLES_SECONDS) as client:
        shown = counted(sum(len(each["tables"]) for each in client.stats()), "table")
        _serve(make_tables_app(client, token, hosts=hosts), arguments, token, f"{shown} of {arguments.path}")
    return 0


def _serve(app: Any, arguments: argparse.Namespace, token: str | None, shown: str) -> None:
    """Say where the page is and what it shows, and serve it unless ``--once`` is given."""
    try:
        import uvicorn
    except ImportError:
        raise MissingDependencyError.of("uvicorn", "view") from None
    query = "" if token is None else f"?token={token}"
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    if arguments.once:
        port = DEFAULT_PORT if arguments.port is None else arguments.port
        _say(f"http://{host}:{port}/{query} shows {shown}")
        return
    # before the address is printed: what listens there may be another one's page
    with closing(_listening(arguments.host, arguments.port)) as listener, suppress(KeyboardInterrupt):
        _say(f"http://{host}:{listener.getsockname()[1]}/{query} shows {shown}; Ctrl-C stops it")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def _say(text: str) -> None:
    print_folded(text)
    sys.stdout.flush()


def _listening(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens at a port, 0: any that is free; None: at the default one or the next that is."""
    for each in range(DEFAULT_PORT, DEFAULT_PORT + NUM_PORTS) if port is None else (port,):
        try:
            family = socket.getaddrinfo(host, each, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, each), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StepwellError(f"cannot listen at {host}, port {each}: {error.strerror}.") from None
    raise StepwellError(f"another process listens at {host}, port {each}. Give another --port; 0 takes a free one.")


def _opened(arguments: argparse.Namespace) -> Store:
    """Return the store; with ``--edit`` for writing, where it is one, and nothing of it is recovered."""
    path = arguments.path
    if arguments.edit and isinstance(path, Path) and is_store(path):
        return open(path, mode="a", recover="none")
    return open_given(arguments)


def run_export_episode(arguments: argparse.Namespace, kind: str) -> int:
    """Write one episode as a file and print how large it is."""
    for name in OF_DATA_SETS:
        if getattr(arguments, name) not in (None, False, []):
            raise StepwellError(f"--{name} is of data sets, not of {kind}: a file of one episode. Leave it out.")
    arguments.path = arguments.source
    with open_given(arguments) as store:
        if arguments.episode is None and len(store) != 1:
            raise EpisodeNotFoundError(
                f"{arguments.source} has {counted(len(store), 'episode')}. Say which one is written: --episode N."
            )
        index = arguments.episode or 0
        features = arguments.feature or None
        path = export_episode(store, index, arguments.target, kind=kind, features=features, fps=arguments.fps)
        record = {
            "path": str(path),
            "format": kind,
            "episode": store[index].index,
            "num_steps": store[index].length,
            "num_bytes": path.stat().st_size,
        }
        size = human_bytes(path.stat().st_size)
        text = f"{path}: episode {store[index].index}  {counted(store[index].length, 'step')}  {size}"
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        print_folded(text)
    return 0
