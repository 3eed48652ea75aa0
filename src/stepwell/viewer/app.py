"""The endpoints of the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.errors import MissingDependencyError, StepwellError
from stepwell.schema import Feature
from stepwell.store import Episode, Store
from stepwell.store.marks import key_of_episode, num_lost_marks
from stepwell.viewer.episodes import cameras_of, describe_episode, is_camera, is_drawn, numbers_of, schema_of
from stepwell.viewer.frames import Frames
from stepwell.viewer.histograms import Histograms
from stepwell.viewer.listing import choose_episodes, list_episodes
from stepwell.viewer.packets import MAX_STEPS, packets_of
from stepwell.viewer.samples import sample_of
from stepwell.viewer.selection import commands_for, save_selection
from stepwell.viewer.site import Answer, Site, to_json

__all__ = ["make_app"]

FILES = {
    "/": "index.html",
    "/common.js": "common.js",
    "/viewer.js": "viewer.js",
    "/viewer.css": "viewer.css",
}


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
        from starlette.routing import Route
    except ImportError:
        raise MissingDependencyError.of("starlette or pillow", "view") from None
    if edit and token is None:
        raise StepwellError("edit=True needs a token, so that only who was given the address can change the store.")
    site, pages = Site(FILES, token, hosts), _Pages(store, edit)
    episode = "/api/episodes/{index:int}"
    routes = [
        Route("/api/histograms", site.reads(pages.histograms)),
        Route("/api/episodes", site.reads(pages.episodes)),
        Route(episode, site.reads(pages.episode)),
        Route(episode + "/numbers", site.reads(pages.numbers)),
        Route(episode + "/sample", site.reads(pages.sample)),
        Route(episode + "/frame", site.reads(pages.frame)),
        Route(episode + "/packets", site.reads(pages.packets)),
        Route("/api/selection", site.reads(pages.selection)),
    ]
    if edit:
        routes += [
            Route(episode + "/mark", site.changes(pages.mark), methods=["POST"]),
            Route("/api/selection", site.changes(pages.save), methods=["POST"]),
        ]
    return site.application(routes)


class _Pages:
    """What the endpoints answer: bytes and their media type."""

    def __init__(self, store: Store, edit: bool) -> None:
        self.store, self.frames, self.edit = store, Frames(store), edit
        self.histograms_of = Histograms(store)
        self.lock = threading.Lock()
        self._lost: tuple[tuple[bytes, ...], int] | None = None

    def episodes(self, request: Any) -> Answer:
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
        about = {"name": self.store.name, "camera": camera, "edit": self.edit, "lost_marks": self._lost_marks()}
        return to_json({**about, **page})

    def episode(self, request: Any) -> Answer:
        return to_json(describe_episode(self.store, self._episode(request)))

    def numbers(self, request: Any) -> Answer:
        values = numbers_of(self._episode(request), self._feature(request, is_drawn))
        return values.tobytes(), "application/octet-stream"

    def frame(self, request: Any) -> Answer:
        episode, name = self._episode(request), self._feature(request, is_camera)
        step = _step_of(request, episode)
        if request.query_params.get("thumbnail") == "1":
            return self.frames.thumbnail(episode.index, name, step)
        return self.frames.encoded(episode.index, name, step)

    def packets(self, request: Any) -> Answer:
        episode, name = self._episode(request), self._feature(request, is_camera)
        count = int(request.query_params.get("count", MAX_STEPS))
        return to_json(packets_of(self.store, episode.index, name, _step_of(request, episode), max(count, 1)))

    def sample(self, request: Any) -> Answer:
        given, schema = request.query_params, schema_of(self.store)
        allowed = [name for name in schema if is_drawn(schema[name])]
        index, step = self._episode(request).index, int(given.get("step", 0))
        return to_json(sample_of(self.store, index, step, given.get("fields", ""), allowed))

    def histograms(self, request: Any) -> Answer:
        name = self._feature(request, is_drawn)
        return to_json(self.histograms_of(name, **_filter(request.query_params)))

    def selection(self, request: Any) -> Answer:
        chosen = choose_episodes(self.store.episodes, **_filter(request.query_params))
        can_save = self.edit and self.store.address is None
        return to_json({"num": len(chosen), "commands": commands_for(self.store, chosen), "can_save": can_save})

    def mark(self, request: Any, value: dict[str, Any]) -> Answer:
        with self.lock:
            episode = self._episode(request)
            if value.get("id") != key_of_episode(self.store, episode.index):
                raise StepwellError(f"episode {episode.index} is another one by now. Open it again.")
            self.store.mark_episodes(episode.index, value.get("mark"), note=value.get("note"))
            return to_json(describe_episode(self.store, self.store[episode.index]))

    def save(self, request: Any, value: dict[str, Any]) -> Answer:
        with self.lock:
            chosen = choose_episodes(self.store.episodes, **_filter(request.query_params))
            path = save_selection(self.store, chosen, str(value.get("name", "")))
        return to_json({"path": str(path)})

    def _lost_marks(self) -> int:
        """Return how many marks are of episodes that are not there; looked for when there are other marks."""
        if self._lost is None or self._lost[0] != self.store.marks.data:
            self._lost = self.store.marks.data, num_lost_marks(self.store)
        return self._lost[1]

    def _episode(self, request: Any) -> Episode:
        return self.store[request.path_params["index"]]

    def _feature(self, request: Any, is_fit: Callable[[Feature], bool]) -> str:
        name, schema = str(request.query_params.get("name", "")), schema_of(self.store)
        fit = [each for each in schema if is_fit(schema[each])]
        if name not in fit:
            raise StepwellError(f"feature {name!r} cannot be shown so. Allowed: {', '.join(fit) or 'none here'}.")
        return name


def _step_of(request: Any, episode: Episode) -> int:
    step = int(request.query_params.get("step", 0))
    if not 0 <= step < episode.length:
        raise StepwellError(f"step {step} of an episode of {episode.length}. Allowed: 0 to {episode.length - 1}.")
    return step


def _filter(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what a request says of `choose_episodes`."""
    return {
        "end": given.get("end", ""),
        "min_length": int(given.get("min_length") or 0),
        "where": given.get("where", ""),
        "mark": given.get("mark", ""),
    }
