"""What a process knows of video files: looked at once, and again for who comes later."""

import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import DecodeError
from stepwell.references import video_in_files
from stepwell.references.video_in_files import forget_changed, known_video

pytest.importorskip("av")
from written_videos import NUM_FRAMES, write_video


@pytest.fixture
def path(tmp_path: Path) -> str:
    # the directory of a test that passed is removed, and the next may get its name: what is known is known by path
    return str(write_video(tmp_path / f"{uuid.uuid4()}.mp4", params="bframes=2"))


def count_indices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    make = video_in_files.make_index

    def noted(path: str, *rest: Any) -> Any:
        made.append(path)
        return make(path, *rest)

    monkeypatch.setattr(video_in_files, "make_index", noted)
    return made


def test_index_is_made_once_for_all_threads(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = count_indices(monkeypatch), []
    threads = [threading.Thread(target=lambda: found.append(known_video(path, 1))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [path]
    assert all(video is found[0] for video in found)


def test_file_is_looked_at_again_only_for_who_comes_later(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, made = known_video(path, 5), count_indices(monkeypatch)
    Path(path).write_bytes(Path(path).read_bytes() + bytes(8))
    assert known_video(path, 5) is first
    assert known_video(path, 4) is first
    later = known_video(path, 6)
    assert later is not first
    assert known_video(path, 5) is later
    assert len(made) == 1


def test_file_that_changed_is_forgotten_and_others_are_not(path: str) -> None:
    assert not forget_changed(path)
    first = known_video(path, 1)
    assert not forget_changed(path)
    Path(path).write_bytes(Path(path).read_bytes() + bytes(8))
    assert forget_changed(path)
    assert known_video(path, 1) is not first
    Path(path).unlink()
    assert not forget_changed(path), "what is open can still be read"


@pytest.mark.parametrize("gap", [0, video_in_files.MAX_GAP_BYTES])
def test_packets_are_the_same_whether_they_are_read_together_or_one_by_one(
    path: str, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_in_files, "MAX_GAP_BYTES", gap)
    video = known_video(path, 1)
    data, index = Path(path).read_bytes(), video.index
    numbers = [0, 3, 4, NUM_FRAMES - 1]
    wanted = [data[index.positions[n] : index.positions[n] + index.sizes[n]] for n in numbers]
    wanted = [index.samples.packet(sample, is_key=place == 0) for place, sample in enumerate(wanted)]
    assert video.packets(numbers) == wanted


def test_file_that_was_changed_since_is_not_read(path: str) -> None:
    video = known_video(path, 1)
    np.testing.assert_equal(len(video.packets([0, 1])), 2)
    other = Path(path).with_name("b.mp4")
    other.write_bytes(bytes(10_000))
    other.replace(path)
    # a file that is open is read on; one that has to be opened again must be the same
    video_in_files.open_file(path, video_in_files.state_of(path))
    with pytest.raises(DecodeError, match="the file was changed while it was read"):
        video.packets([0, 1])


def test_file_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"none\.mp4: there is no such file"):
        known_video(str(tmp_path / "none.mp4"), 1)
    with pytest.raises(DecodeError, match=f"{tmp_path}: cannot be read"):
        known_video(str(tmp_path), 1)
