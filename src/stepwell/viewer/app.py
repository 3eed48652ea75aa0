"""The endpoints of the page."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepwell.errors import MissingDependencyError, StepwellError
from stepwell.json_text import parse_json
from stepwell.schema import Feature
from stepwell.store import Episode, Store
from stepwell.viewer.episodes import cameras_of, describe_episode, is_camera, is_drawn, numbers_of, schema_of
from stepwell.viewer.frames import Frames
from stepwell.viewer.histograms import Histograms
from stepwell.viewer.listing import choose_episodes, list_episodes
from stepwell.viewer.samples import sample_of
from stepwell.viewer.selection import commands_for, save_selection

__all__ = ["make_app"]

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/viewer.js": ("viewer.js", "text/javascript"),
    "/viewer.css": ("viewer.css", "text/css"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LOCAL_HOSTS = ["127.0.0.1", "localhost"]
MAX_BODY_BYTES = 64 << 10


def make_app(store: Store, token: str | None = None, *, edit: bool = False, hosts: Sequence[str] | None = None) -> Any:
    """Return the ASGI application that shows a store.

    Args:
        store: open for reading; with ``edit`` for writing, unless it is a data set that is read in place.
        token: what a request for data gives as ``?token=``, from any host; None: requests must name this machine as
            their host, which keeps pages of others from reading through a name of theirs that leads here.
        edit: whether episodes may be marked and selections saved; needs a token. Without it nothing is written.
        hosts: names that requests may give as their host; default: this machine's without a token, else any.

    Raises:
        StepwellError: ``edit`` without a token: any page that the browser shows could send what changes the store.
        MissingDependencyError: Starlette or Pillow is missing.
    """
    try:
        import PIL  # noqa: F401
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise MissingDependencyError.of("starlette or pillow", "view") from None

    if edit and token is None:
        raise StepwellError("edit=True needs a token, so that only who was given the address can change the store.")
    pages = _Pages(store, edit)

    def file_of(request: Any) -> Any:
        name, media = FILES[request.url.path]
        return Response((PAGE / name).read_bytes(), media_type=media, headers=HEADERS)

    def is_known(request: Any) -> bool:
        given = request.query_params.get("token", "").encode()
        return token is None or hmac.compare_digest(given, token.encode())

    def refused(text: str, status: int) -> Any:
        return Response(text, status, headers=HEADERS, media_type="text/plain")

    def guarded(answer: Callable[[Any], tuple[bytes, str]]) -> Callable[[Any], Any]:
        def respond(request: Any) -> Any:
            if not is_known(request):
                return refused("the token in the address is missing or wrong", 403)
            try:
                body, media = answer(request)
            except (StepwellError, ValueError) as error:
                return refused(str(error), 422)
            # asked again each time, since episodes change their numbers; what is the same is not sent again
            etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
            headers = {**HEADERS, "Cache-Control": "private, no-cache", "ETag": etag}
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers=headers)
            return Response(body, media_type=media, headers=headers)

        return respond

    def changing(change: Callable[[Any, dict[str, Any]], tuple[bytes, str]]) -> Callable[[Any], Any]:
        async def respond(request: Any) -> Any:
            if not is_known(request) or not _is_own(request.headers):
                return refused("changes are taken from the page at the address with the token alone", 403)
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return refused(f"more than {MAX_BODY_BYTES} bytes", 413)
            try:
                value = parse_json(body)
                if not isinstance(value, dict):
                    raise StepwellError("a change is an object of JSON.")
                answer, media = await run_in_threadpool(change, request, value)
            except (StepwellError, ValueError, TypeError, OSError) as error:
                return refused(str(error), 422)
            return Response(answer, media_type=media, headers=HEADERS)

        return respond

    episode = "/api/episodes/{index:int}"
    routes = [Route(path, file_of) for path in FILES] + [
        Route("/api/histograms", guarded(pages.histograms)),
        Route("/api/episodes", guarded(pages.episodes)),
        Route(episode, guarded(pages.episode)),
        Route(episode + "/numbers", guarded(pages.numbers)),
        Route(episode + "/sample", guarded(pages.sample)),
        Route(episode + "/frame", guarded(pages.frame)),
        Route("/api/selection", guarded(pages.selection)),
    ]
    if edit:
        routes += [
            Route(episode + "/mark", changing(pages.mark), methods=["POST"]),
            Route("/api/selection", changing(pages.save), methods=["POST"]),
        ]
    allowed = list(hosts or (LOCAL_HOSTS if token is None else ["*"]))
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed)])


class _Pages:
    """What the endpoints answer: bytes and their media type."""

    def __init__(self, store: Store, edit: bool) -> None:
        self.store, self.frames, self.edit = store, Frames(store), edit
        self.histograms_of = Histograms(store)
        self.lock = threading.Lock()

    def episodes(self, request: Any) -> tuple[bytes, str]:
        given = request.query_params
        with self.lock:
            self.store.refresh()
        page = list_episodes(
            self.store.episodes,
            first=int(given.get("first", 0)),
            count=int(given.get("count", 100)),
            sort=given.get("sort", "index"),
            descending=given.get("descending") == "1",
            **_filter(given),
        )
        camera = next(iter(cameras_of(schema_of(self.store))), None)
        return _json({"name": self.store.name, "camera": camera, "edit": self.edit, **page})

    def episode(self, request: Any) -> tuple[bytes, str]:
        return _json(describe_episode(self.store, self._episode(request)))

    def numbers(self, request: Any) -> tuple[bytes, str]:
        values = numbers_of(self._episode(request), self._feature(request, is_drawn))
        return values.tobytes(), "application/octet-stream"

    def frame(self, request: Any) -> tuple[bytes, str]:
        episode, name = self._episode(request), self._feature(request, is_camera)
        step = int(request.query_params.get("step", 0))
        if not 0 <= step < episode.length:
            raise StepwellError(f"step {step} of an episode of {episode.length}. Allowed: 0 to {episode.length - 1}.")
        if request.query_params.get("thumbnail") == "1":
            return self.frames.thumbnail(episode.index, name, step)
        return self.frames.encoded(episode.index, name, step)

    def sample(self, request: Any) -> tuple[bytes, str]:
        given, schema = request.query_params, schema_of(self.store)
        allowed = [name for name in schema if is_drawn(schema[name])]
        index, step = self._episode(request).index, int(given.get("step", 0))
        return _json(sample_of(self.store, index, step, given.get("fields", ""), allowed))

    def histograms(self, request: Any) -> tuple[bytes, str]:
        name = self._feature(request, is_drawn)
        return _json(self.histograms_of(name, **_filter(request.query_params)))

    def selection(self, request: Any) -> tuple[bytes, str]:
        chosen = choose_episodes(self.store.episodes, **_filter(request.query_params))
        can_save = self.edit and self.store.address is None
        return _json({"num": len(chosen), "commands": commands_for(self.store, chosen), "can_save": can_save})

    def mark(self, request: Any, value: dict[str, Any]) -> tuple[bytes, str]:
        with self.lock:
            episode = self._episode(request)
            if value.get("id") != str(self.store.episodes.origin[episode.index]):
                raise StepwellError(f"episode {episode.index} is another one by now. Open it again.")
            self.store.mark_episodes(episode.index, value.get("mark"), note=value.get("note"))
            return _json(describe_episode(self.store, self.store[episode.index]))

    def save(self, request: Any, value: dict[str, Any]) -> tuple[bytes, str]:
        with self.lock:
            chosen = choose_episodes(self.store.episodes, **_filter(request.query_params))
            path = save_selection(self.store, chosen, str(value.get("name", "")))
        return _json({"path": str(path)})

    def _episode(self, request: Any) -> Episode:
        return self.store[request.path_params["index"]]

    def _feature(self, request: Any, is_fit: Callable[[Feature], bool]) -> str:
        name, schema = str(request.query_params.get("name", "")), schema_of(self.store)
        fit = [each for each in schema if is_fit(schema[each])]
        if name not in fit:
            raise StepwellError(f"feature {name!r} cannot be shown so. Allowed: {', '.join(fit) or 'none here'}.")
        return name


def _filter(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what a request says of `choose_episodes`."""
    return {
        "end": given.get("end", ""),
        "min_length": int(given.get("min_length") or 0),
        "where": given.get("where", ""),
        "mark": given.get("mark", ""),
    }


def _is_own(headers: Mapping[str, str]) -> bool:
    """Whether a change comes from a page of this server: browsers say so, and ask first before they send JSON."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    is_json = headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    return is_json and site == "same-origin" and (origin is None or urlsplit(origin).netloc == headers.get("host"))


def _json(value: Any) -> tuple[bytes, str]:
    return json.dumps(value, default=str).encode(), "application/json"
