"""Tables for other processes and machines: a server, its clients, their writers and loaders; see docs/service.md."""

from stepwell.service.client import Client
from stepwell.service.loading import RemoteLoader
from stepwell.service.server import Server, open_table
from stepwell.service.settings import TLS, Limits
from stepwell.service.writing import RemoteVectorWriter, RemoteWriter

__all__ = ["TLS", "Client", "Limits", "RemoteLoader", "RemoteVectorWriter", "RemoteWriter", "Server", "open_table"]
