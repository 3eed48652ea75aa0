"""Replay buffers of Dopamine are read as the episodes that were added, without the zeros between them."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from robot_sets import write_dqn_replay

import stepwell
from stepwell.cli.main import main
from stepwell.errors import FormatError
from stepwell.formats import find_reader, open_reader


def ids(reader) -> list[list[int]]:
    return [episode.columns["observation"][:, 0, 0].tolist() for episode in reader.episodes()]


@pytest.mark.parametrize(
    ("lengths", "capacity"),
    [([5, 3, 8, 4], 60), ([5, 3, 8, 4], 32), ([5] * 9, 40), ([1, 1, 1, 20, 2], 34), ([7, 6, 5, 4, 3, 2, 1, 9], 33)],
)
def test_episodes_are_those_that_were_added(tmp_path: Path, lengths: list[int], capacity: int) -> None:
    made = write_dqn_replay(tmp_path / "replay_logs", lengths, capacity)
    reader = open_reader(tmp_path)
    assert reader.name == "dqn-replay"
    # a plain model: the last rows of all that were added, cut after each end, without zeros
    rows = [
        (row, row == episode[-1] and number < len(made) - 1)
        for number, episode in enumerate(made)
        for row in (0, 0, 0, *episode)
    ]
    wanted: list[tuple[list[int], bool]] = [([], False)]
    for row, is_end in rows[-capacity:]:
        wanted[-1] = ([*wanted[-1][0], *([row] if row else [])], is_end)
        if is_end:
            wanted.append(([], False))
    flags = [episode.terminated for episode in reader.episodes()]
    assert sorted(zip(ids(reader), flags, strict=True)) == sorted(each for each in wanted if each[0])


def test_the_command_converts_what_it_recognises(tmp_path: Path) -> None:
    made = write_dqn_replay(tmp_path / "logs", [5, 3, 8], 40)
    write_dqn_replay(tmp_path / "logs", [4, 2], 40, checkpoint=12)
    assert find_reader(tmp_path / "logs").name == "dqn-replay"
    assert main(["convert", str(tmp_path / "logs"), str(tmp_path / "a.well"), "--workers", "1"]) == 0
    store = stepwell.open(tmp_path / "a.well")
    assert [episode.metadata["checkpoint"] for episode in store] == [0, 0, 0, 12, 12]
    assert [episode["observation"][:, 0, 0].tolist() for episode in store][:3] == made
    assert [episode.terminated for episode in store] == [True, True, False, True, False]
    assert len(open_reader(tmp_path / "logs", options={"checkpoints": "12"})) == 2
    reader = open_reader(tmp_path / "logs")
    backwards = [reader[index].columns["observation"][:, 0, 0].tolist() for index in (2, 1, 0)]
    assert backwards == made[::-1]


def damaged(root: Path, name: str, value: np.ndarray | bytes) -> None:
    with gzip.open(root / name, "wb") as file:
        np.save(file, value) if isinstance(value, np.ndarray) else file.write(value)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("$store$_action_ckpt.0.gz", np.zeros(39, np.int32), r"action \(39,\).*as many rows"),
        ("$store$_reward_ckpt.0.gz", np.zeros(40, "U3"), "where rows of numbers should be"),
        ("$store$_terminal_ckpt.0.gz", b"\x93NUMPY\x01\x00", "terminal_ckpt.0.gz"),
        ("add_count_ckpt.0.gz", np.zeros(3, np.int64), "where one number should be"),
        ("add_count_ckpt.0.gz", np.array(["x"], object), "add_count"),
        ("add_count_ckpt.0.gz", np.array(-3), "-3 rows were ever added"),
    ],
)
def test_files_that_are_none_of_a_buffer_are_told(tmp_path: Path, name: str, value, told: str) -> None:
    write_dqn_replay(tmp_path, [5, 3, 8], 40)
    damaged(tmp_path, name, value)
    with pytest.raises(FormatError, match=told):
        open_reader(tmp_path, "dqn-replay")


def test_what_is_cut_off_or_missing_is_told(tmp_path: Path) -> None:
    write_dqn_replay(tmp_path, [5, 3, 8], 40)
    path = tmp_path / "$store$_observation_ckpt.0.gz"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match=r"observation_ckpt.0.gz"):
        list(open_reader(tmp_path).episodes())
    header = np.lib.format.header_data_from_array_1_0(np.zeros((2, 8, 6), np.uint8)) | {"shape": (1 << 40, 8, 6)}
    with gzip.open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(FormatError, match=r"it claims .* bytes in"):
        open_reader(tmp_path)
    (tmp_path / "$store$_action_ckpt.0.gz").unlink()
    with pytest.raises(FormatError, match=r"checkpoint 0 has no action"):
        open_reader(tmp_path)
    with pytest.raises(FormatError, match=r"has no checkpoints \[7\]. It has: \[0\]"):
        open_reader(tmp_path, options={"checkpoints": [7]})
