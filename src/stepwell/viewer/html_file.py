"""An episode as one HTML file: the page of `stepwell view` with what the server would answer inside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stepwell.errors import DecodeError, StepwellError
from stepwell.sizes import human_bytes
from stepwell.store import Store
from stepwell.viewer.episodes import describe_episode, numbers_of
from stepwell.viewer.frames import FILE_QUALITY, Frames
from stepwell.viewer.site import PAGE

__all__ = ["write_html"]

# nothing is fetched, from anywhere, and no text of a store can run
POLICY = (
    "default-src 'none'; img-src data:; connect-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
# browsers hold no longer text
MAX_BYTES = 400 << 20


def write_html(
    path: Path,
    store: Store,
    index: int,
    features: Sequence[str],
    *,
    fps: float | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Write a page that shows one episode without a server or a network.

    Rows that are JPEG, PNG or WebP files go in as they lie; other cameras as JPEG of quality 90, those with alpha as
    PNG. A damaged frame goes in as what is wrong with it.

    Args:
        path: of the file, not there yet.
        store: open for reading.
        index: of the episode.
        features: the cameras and the numbers that are shown.
        fps: of playing; default the store's.
        progress: called for each frame that was written.

    Raises:
        StepwellError: more than MAX_BYTES, which no browser opens.
    """
    head, _, foot = _template().partition("@answers@")
    title = f"{store.name}, episode {index}"
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        written, separator = 0, ""
        for key, value in _answers(store, index, features, fps, progress):
            text = f"{separator}{_in_script(key)}:{_in_script(value)}"
            separator, written = ",\n", written + len(text)
            if written > MAX_BYTES:
                raise StepwellError(
                    f"episode {index} takes more than {human_bytes(MAX_BYTES)} as HTML, which browsers do not open. "
                    "Choose fewer features, or write an mp4."
                )
            file.write(text)
        file.write(foot.replace("@about@", f'"index":{index},"title":{_in_script(title)}'))


def _template() -> str:
    """Return the page with style and script in it, and @answers@ and @about@ where those of the episode go."""
    names = "index.html", "viewer.css", "common.js", "viewer.js"
    page, style, common, script = ((PAGE / name).read_text("utf-8") for name in names)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    embedded = '<script type="application/json" id="embedded">{"answers":{\n@answers@\n},@about@}</script>'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{policy}')
    page = page.replace('<link rel="stylesheet" href="viewer.css">', f"<style>\n{style}</style>")
    page = page.replace('<script src="common.js"></script>', f"{embedded}\n<script>\n{common}</script>\n")
    return page.replace('<script src="viewer.js"></script>', f"<script>\n{script}</script>")


def _answers(
    store: Store, index: int, features: Sequence[str], fps: float | None, progress: Callable[[], None]
) -> Iterator[tuple[str, Any]]:
    """Yield what the page asks for, by path and query as `address` of the script writes them."""
    episode, path = store[index], f"episodes/{index}"
    about = describe_episode(store, episode)
    about["fps"] = fps or about["fps"]
    about["cameras"] = [name for name in about["cameras"] if name in features]
    about["numbers"] = {name: axes for name, axes in about["numbers"].items() if name in features}
    yield f"{path}?", _data(json.dumps(about).encode(), "application/json")
    for name in about["numbers"]:
        query = urlencode({"name": name})
        yield f"{path}/numbers?{query}", _data(numbers_of(episode, name).tobytes(), "application/octet-stream")
    frames = Frames(store)
    for name in about["cameras"]:
        for step in range(episode.length):
            query = urlencode({"name": name, "step": step})
            try:
                yield f"{path}/frame?{query}", _data(*frames.encoded(index, name, step, quality=FILE_QUALITY))
            except DecodeError as error:
                yield f"{path}/frame?{query}", {"error": str(error)}
            progress()


def _data(body: bytes, media: str) -> str:
    return f"data:{media};base64,{base64.b64encode(body).decode()}"


def _in_script(value: Any) -> str:
    """Return JSON that a script element may hold: no text of it ends the element."""
    return json.dumps(value).replace("<", "\\u003c")
