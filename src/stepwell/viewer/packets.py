"""Video as it lies: the packets of some steps, for a browser that decodes them itself.

A row of video says which frame of its run it shows, by the number of that frame's packet; see
`stepwell.codecs.video_streams`. So a decoder whose packets carry their numbers as times gives each step its frame, in
whatever order frames come, and no container is needed.
"""

from __future__ import annotations

import base64
from typing import Any

from stepwell.codecs import make_codec
from stepwell.codecs.video_streams import VideoRow, parse_row
from stepwell.references.file_codec import FileCodec
from stepwell.store import Store
from stepwell.viewer.episodes import schema_of

__all__ = ["packets_of"]

# steps of one answer, and how far before the first one its run may begin
MAX_STEPS, MAX_BACK = 64, 512
SPS = b"\0\0\1\x67", b"\0\0\1\x27", b"\0\0\1\x47"
# a level that no camera is beyond: decoders look at the stream's own
LEVELS = {"av1": "av01.{}.13M.08", "vp9": "vp09.00.51.08"}
AV1_SEQUENCE_HEADER = b"\x0a"
NOTHING: dict[str, Any] = {"codec": None, "runs": []}


def packets_of(store: Store, index: int, name: str, first: int, count: int) -> dict[str, Any]:
    """Return the packets that show steps ``first`` to before ``first + count``, as JSON types.

    Args:
        store: open for reading.
        index: of the episode.
        name: of a camera.
        first: step.
        count: steps, MAX_STEPS at most; fewer where the episode ends.

    Returns:
        ``codec``, as browsers call it, None where there are no packets that they take; and ``runs``, each with
        ``packets`` (base64, in the order of decoding) and ``rows``, [step, number of the packet whose frame it shows].

    Raises:
        DecodeError: a row that is none, or a file that is lost.
    """
    feature = schema_of(store)[name]
    codec = make_codec(feature)
    kept = codec.embedded() if isinstance(codec, FileCodec) else feature
    if kept.codec != "video":
        return NOTHING
    segments, table = store.listing
    rows, start = segments[int(table.segment[index])].stored_rows(name), int(table.start[index])
    stop = min(first + min(count, MAX_STEPS), int(table.length[index]))
    if isinstance(codec, FileCodec):
        blobs = [rows.blob(start + step) for step in range(first, stop)]
        parsed = [(step, parse_row(blob)) for step, blob in enumerate(codec.embed(blobs).rows(kept), first)]
    else:
        begin = first
        while not parse_row(rows.blob(start + begin).data).is_sync:
            begin -= 1
            if begin < max(0, first - MAX_BACK):
                return NOTHING
        parsed = [(step, parse_row(rows.blob(start + step).data)) for step in range(begin, stop)]
    return _answer(parsed)


def _answer(rows: list[tuple[int, VideoRow]]) -> dict[str, Any]:
    runs: list[dict[str, list[Any]]] = []
    for step, row in rows:
        if row.turn or (not runs and not row.is_sync):
            return NOTHING
        if row.is_sync:
            runs.append({"packets": [], "rows": []})
        runs[-1]["packets"] += [base64.b64encode(packet).decode() for packet in row.packets]
        runs[-1]["rows"].append([step, row.frame])
    name = _name_of(rows[0][1]) if rows else None
    return NOTHING if name is None else {"codec": name, "runs": runs}


def _name_of(row: VideoRow) -> str | None:
    """Return what browsers call the stream of a row that begins a run; None of what none of them takes."""
    head = bytes(row.packets[0][:256])
    if row.kind == "h264":
        places = [place for mark in SPS if (place := head.find(mark)) >= 0]
        return f"avc1.{head[min(places) + 4 : min(places) + 7].hex()}" if places else None
    if row.kind == "av1":
        # after the head and the size of a sequence header: its profile, three bits
        place = head.find(AV1_SEQUENCE_HEADER)
        return LEVELS["av1"].format(head[place + 2] >> 5) if 0 <= place < len(head) - 2 else None
    return LEVELS.get(row.kind)
