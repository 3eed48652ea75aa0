"""Files that are called videos and name other files: none of these is opened, and a FIFO is not waited for."""

import os
from pathlib import Path

import numpy as np
import pytest

from stepwell.codecs.video_files import VideoFile
from stepwell.errors import DecodeError
from stepwell.references.video_in_files import known_video

av = pytest.importorskip("av")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a video that others refer to."""
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / "secret.ts"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for number in range(12):
            image = np.full((32, 48, 3), 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))
    assert VideoFile(path).num_rows == 12
    return path


LISTS = {
    "ffconcat": "ffconcat version 1.0\nfile secret.ts\nfile secret.ts\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\nsecret.ts\n#EXT-X-ENDLIST\n",
    "hls of a file address": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\nfile:{}\n#EXT-X-ENDLIST\n",
    "a session": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    "a=rtpmap:96 H264/90000\n",
    "a manifest": '<?xml version="1.0"?>'
    '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>secret.ts</BaseURL></Representation></AdaptationSet></Period></MPD>',
}


@pytest.mark.parametrize("text", LISTS.values(), ids=list(LISTS))
@pytest.mark.parametrize("ending", ["mp4", "m3u8", "mkv"])
def test_a_text_that_names_other_files_is_no_video(secret: Path, text: str, ending: str) -> None:
    path = secret.with_name(f"list.{ending}")
    path.write_text(text.replace("{}", str(secret)))
    for read in (lambda: VideoFile(path), lambda: known_video(str(path), 1)):
        with pytest.raises(DecodeError, match="finds no video"):
            read()


def test_a_name_is_a_name_of_a_file_whatever_is_in_it(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(secret.parent)
    for name in ("concat:secret.ts|secret.ts", "subfile,,start,0,end,9999,,:secret.ts", "async:secret.ts", "a:b.mp4"):
        with pytest.raises(FileNotFoundError):
            VideoFile(name)
        Path(name).write_bytes(secret.read_bytes())
        assert VideoFile(name).num_rows == 12


def test_a_fifo_is_no_video(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(OSError, match="FIFO"):
        VideoFile(tmp_path / "a.mp4")
    with pytest.raises(DecodeError, match="FIFO"):
        known_video(str(tmp_path / "a.mp4"), 1)
