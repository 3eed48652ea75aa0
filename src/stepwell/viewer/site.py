"""What every page of ours is served by: its files, who may ask, and who may change anything."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.errors import MissingDependencyError, StepwellError
from stepwell.json_text import parse_json

__all__ = ["LOCAL_HOSTS", "PAGE", "Answer", "Site", "to_json"]

Answer = tuple[bytes, str]
PAGE = Path(__file__).parent / "page"
MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    # pages of others, those of other ports of this machine too, can neither show nor open what is here
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LOCAL_HOSTS = ["127.0.0.1", "localhost"]
MAX_BODY_BYTES = 64 << 10


class Site:
    """Makes the endpoints of a page and the application of them.

    Args:
        files: address to the name of a file of the page.
        token: what a request for data gives as ``?token=``; None: requests must name this machine as their host.
        hosts: names that requests may give as their host; default: this machine's without a token, else any.

    Raises:
        MissingDependencyError: Starlette is missing.
    """

    def __init__(self, files: Mapping[str, str], token: str | None, hosts: Sequence[str] | None = None) -> None:
        try:
            from starlette.responses import Response
        except ImportError:
            raise MissingDependencyError.of("starlette", "view") from None
        self._response: Any = Response
        self._files, self._token = files, token
        self._hosts = list(hosts or (LOCAL_HOSTS if token is None else ["*"]))

    def reads(self, answer: Callable[[Any], Answer]) -> Callable[[Any], Any]:
        """Return an endpoint of what a function returns for a request: bytes and their media type."""

        def respond(request: Any) -> Any:
            if not self._is_known(request):
                return self._refused("the token in the address is missing or wrong", 403)
            if not _is_from_here(request.headers):
                return self._refused("data are given to the page of this server alone", 403)
            try:
                body, media = answer(request)
            except (StepwellError, ValueError) as error:
                return self._refused(str(error), 422)
            # asked again each time, since episodes change their numbers; what is the same is not sent again
            etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
            headers = {**HEADERS, "Cache-Control": "private, no-cache", "ETag": etag}
            if request.headers.get("if-none-match") == etag:
                return self._response(status_code=304, headers=headers)
            return self._response(body, media_type=media, headers=headers)

        return respond

    def changes(self, change: Callable[[Any, dict[str, Any]], Answer]) -> Callable[[Any], Any]:
        """Return an endpoint that changes something, by a request and the JSON object that it brings."""

        async def respond(request: Any) -> Any:
            from starlette.concurrency import run_in_threadpool

            if not self._is_known(request) or not _is_own(request.headers):
                return self._refused("changes are taken from the page at the address with the token alone", 403)
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return self._refused(f"more than {MAX_BODY_BYTES} bytes", 413)
            try:
                value = parse_json(body)
                if not isinstance(value, dict):
                    raise StepwellError("a change is an object of JSON.")
                answer, media = await run_in_threadpool(change, request, value)
            except (StepwellError, ValueError, TypeError, OSError) as error:
                return self._refused(str(error), 422)
            return self._response(answer, media_type=media, headers=HEADERS)

        return respond

    def application(self, routes: Iterable[Any]) -> Any:
        """Return the ASGI application of these routes and of the page's files."""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Route

        own = [Route(path, self._file) for path in self._files]
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=self._hosts)
        return Starlette(routes=[*own, *routes], middleware=[guard])

    def _file(self, request: Any) -> Any:
        path = PAGE / self._files[request.url.path]
        return self._response(path.read_bytes(), media_type=MEDIA[path.suffix], headers=HEADERS)

    def _is_known(self, request: Any) -> bool:
        given = request.query_params.get("token", "").encode()
        return self._token is None or hmac.compare_digest(given, self._token.encode())

    def _refused(self, text: str, status: int) -> Any:
        return self._response(text, status, headers=HEADERS, media_type="text/plain")


def _is_from_here(headers: Mapping[str, str], sites: Collection[str] = ("same-origin", "none")) -> bool:
    """Whether a request comes from a page of this server, or was typed, as far as the browser says it."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    return site in sites and (origin is None or origin.partition("://")[2] == headers.get("host"))


def _is_own(headers: Mapping[str, str]) -> bool:
    """Whether a change comes from a page of this server: browsers say so, and ask first before they send JSON."""
    is_json = headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    return is_json and _is_from_here(headers, ("same-origin",))


def to_json(value: Any) -> Answer:
    """Return a value as the answer of an endpoint."""
    return json.dumps(value, default=str).encode(), "application/json"
