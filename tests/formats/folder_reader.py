"""A reader of folders of .npz files, an episode a file; a module of its own, so that spawned workers can import it."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from stepwell import Array, EncodedRows, EpisodeData, Image, Schema, Video
from stepwell.codecs import make_codec
from stepwell.formats import Reader, register_reader

CAMERA = Image((16, 24, 3), codec="png")


def pictures(episode: int, length: int) -> np.ndarray:
    y, x = np.mgrid[:16, :24]
    smooth = np.stack([x * 9, y * 12, (x + y) * 5], axis=-1)
    return np.stack([(smooth + 31 * episode + 5 * step) % 200 for step in range(length)]).astype(np.uint8)


def write_folder(folder: Path, lengths=(4, 7, 3, 5)) -> Path:
    """Write a folder that `FolderReader` reads: PNG files and actions."""
    folder.mkdir()
    codec = make_codec(CAMERA)
    for episode, length in enumerate(lengths):
        blobs = [np.frombuffer(codec.encode(picture), np.uint8) for picture in pictures(episode, length)]
        actions = np.full((length, 2), episode, np.float32)
        np.savez(
            folder / f"{episode:03d}.npz", action=actions, **{f"top{step}": blob for step, blob in enumerate(blobs)}
        )
    (folder / "kind.txt").write_text("folder")
    return folder


@register_reader
class FolderReader(Reader):
    """Episodes of PNG files in .npz files."""

    name = "folder"

    def __init__(self, source, *, fps=10.0, slow=0.0):
        super().__init__(source)
        self.files = sorted(Path(source).glob("*.npz"))
        self.fps, self._slow = fps, slow
        self.schema = Schema({"top": CAMERA, "action": Array(2)})
        self.metadata = {"from": "folder"}
        self.prepared: list[int] = []
        self.forgotten: list[int] = []

    @classmethod
    def accepts(cls, source):
        return (Path(source) / "kind.txt").exists()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        time.sleep(self._slow)
        with np.load(self.files[index]) as found:
            blobs = [found[f"top{step}"].tobytes() for step in range(len(found["action"]))]
            columns = {"top": EncodedRows(blobs), "action": found["action"]}
        return EpisodeData(columns, terminated=index % 2 == 0, metadata={"file": self.files[index].name})

    def prepare(self, episodes):
        self.prepared += episodes.tolist()

    def forget(self, episodes):
        self.forgotten += episodes.tolist()


class SlowEpisodes:
    """Raw episodes for `write_episodes`, one a moment; item ``at`` is not readable."""

    identity = "slow"

    def __init__(self, length=12, seconds=0.0, at=-1, kill_at=-1, marks=None):
        self.length, self.seconds, self.at, self.kill_at, self.marks = length, seconds, at, kill_at, marks

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.marks is not None:
            (Path(self.marks) / f"{index}").touch()
        time.sleep(self.seconds)
        if index == self.at:
            raise ValueError("this one is not readable")
        if index == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        rng = np.random.default_rng(index)
        return {"action": rng.random((3 + index % 4, 2), np.float32), "note": [f"{index}"] * (3 + index % 4)}


VIDEO = Video((16, 24, 3))
