"""Pickles of trajectories are read only when they are trusted, and then only arrays and containers."""

import collections
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robot_sets import decision_transformer, write_decision_transformer

import stepwell
from stepwell import convert
from stepwell.cli.main import main
from stepwell.errors import FormatError, UntrustedFileError
from stepwell.formats import find_reader, open_reader


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_trusted_trajectories_are_those_that_were_written(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    path = write_decision_transformer(tmp_path / "hopper.pkl", protocol)
    assert find_reader(path).name == "decision-transformer"
    store = stepwell.open(f"decision-transformer://{path}", trust=True)
    for episode, wanted in zip(store, decision_transformer(), strict=True):
        rows = np.concatenate([wanted["observations"], wanted["next_observations"][-1:]])
        assert np.array_equal(episode["observations"], rows)
        assert np.array_equal(episode["actions"], wanted["actions"])
        assert episode.terminated == wanted["terminals"][-1] != episode.truncated
    assert "next_observations" not in store.schema


def test_nothing_is_read_without_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_decision_transformer(tmp_path / "hopper.pkl")
    for read in (
        lambda: stepwell.open(f"decision-transformer://{path}"),
        lambda: stepwell.open(f"decision-transformer://{path}", trust=tmp_path),
        lambda: open_reader(path),
        lambda: convert(path, tmp_path / "a.well", workers=0),
    ):
        with pytest.raises(UntrustedFileError, match=r"is a pickle, and was not read.*trust=True"):
            read()
    assert main(["convert", str(path), str(tmp_path / "a.well")]) == 1
    assert "trust=true" in capsys.readouterr().err
    convert(path, tmp_path / "a.well", workers=0, trust=True)
    assert (
        main(["convert", f"decision-transformer://{path}?trust=true", str(tmp_path / "b.well"), "--workers", "1"]) == 0
    )
    assert main(["convert", str(path), str(tmp_path / "c.well"), "--with", "trust=true", "--workers", "1"]) == 0
    assert main(["convert", str(path), str(tmp_path / "d.well"), "--with", "trust=/etc", "--workers", "1"]) == 1
    assert len(stepwell.open(tmp_path / "a.well")) == len(stepwell.open(tmp_path / "b.well")) == 3


class Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


def evil(target: Path) -> list[Any]:
    return [
        Runs(os.system, f"touch {target}"),
        Runs(Path.touch, target),
        Runs(eval, f"open({str(target)!r}, 'w')"),
        Runs(getattr, "x", "upper"),
        Runs(collections.Counter, "abc"),
        np.array([Runs(Path.touch, target)], object),
        np.ma.masked_array([1.0]),
        Runs(np.load, str(target)),
    ]


@pytest.mark.parametrize("number", range(8))
def test_a_trusted_pickle_still_runs_nothing(tmp_path: Path, number: int) -> None:
    target = tmp_path / "ran"
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps([{"observations": evil(target)[number]}]))
    with pytest.raises((UntrustedFileError, FormatError)):
        open_reader(path, options={"trust": True})
    assert not target.exists()


def test_containers_of_other_writers_are_read(tmp_path: Path) -> None:
    rows = collections.defaultdict(list, {"observations": [np.float32(1), np.float32(2)], "actions": [[1.0, 2.0]] * 2})
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps([rows, collections.OrderedDict(rows)]))
    episode = open_reader(path, options={"trust": "true"})[1]
    assert episode.columns["observations"].tolist() == [1, 2]
    assert (episode.terminated, episode.truncated) == (False, False)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"observations": np.zeros(3)}, "holds a dict. It should hold a list of dicts"),
        ([], "holds a list"),
        ([{"observations": np.zeros(3), "actions": np.zeros(2)}], r"trajectory 0 of .*observations float64 \(3,\)"),
        ([{"observations": np.array(["a"])}], r"Arrays have a row of numbers a step"),
        ([{"a": np.zeros((3, 2))}, {"a": np.zeros((3, 4))}], r"trajectory 1 of .*a is \(3, 4\)"),
        (threading.Event.__name__, "holds a str"),
    ],
)
def test_what_is_no_list_of_trajectories_is_told(tmp_path: Path, value: Any, told: str) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(FormatError, match=told):
        list(open_reader(path, options={"trust": True}).episodes())


def test_a_pickle_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = write_decision_transformer(tmp_path / "a.pkl")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"a.pkl: .*It is damaged, or no pickle of arrays"):
        open_reader(path, options={"trust": True})


class Calls:
    """Pickles as a call, and what is then filled in."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        return self.parts


@pytest.mark.parametrize(
    "evil",
    [
        # any bytes as the addresses of objects
        Calls(np.ndarray, ((2,), np.dtype("O"), b"A" * 16)),
        Calls(np.ndarray, ((1 << 40,), "u1")),
        Calls(np.dtype, ("V8", False, True), (4, "|", None, ("x",), {"x": (np.dtype("O"), 0)}, 8, 1, 0, None)),
        Calls(np.zeros(1).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (2,), np.dtype("O"), False, b"A" * 16)),
    ],
)
def test_addresses_in_a_pickle_are_never_taken_for_objects(tmp_path: Path, evil: object) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([{"observations": evil}]))
    with pytest.raises(UntrustedFileError, match="It was not read"):
        open_reader(f"decision-transformer://{tmp_path}/a.pkl?trust=true")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_and_order_of_bytes_is_read(tmp_path: Path, protocol: int) -> None:
    rows = {"observations": np.arange(6.0).reshape(3, 2), "rewards": np.arange(3, dtype=">f4")}
    rows |= {"actions": np.asfortranarray(np.arange(6, dtype="<i2").reshape(3, 2)), "dones": [False, np.True_, True]}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([rows], protocol))
    (episode,) = open_reader(f"decision-transformer://{tmp_path}/a.pkl?trust=true").episodes()
    for name, values in rows.items():
        assert np.array_equal(episode.columns[name], values), name
