"""``rm``, ``split`` and ``merge`` of stores and of LeRobot datasets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.cli.editing import _ranges
from stepwell.cli.main import main

NUM_EPISODES = 6


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    store = stepwell.create(tmp_path / "runs.well", {"x": stepwell.Array((), "int64")}, fps=10)
    with store.writer() as writer:
        for number in range(NUM_EPISODES):
            writer.add_episode({"x": np.arange(number + 2)}, number=number, success=number % 2 == 0)
    return store.path


@pytest.fixture
def lerobot_path(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    from stepwell.testing.lerobot import tiny_lerobot

    return Path(tiny_lerobot(tmp_path / "arm", lengths=[9, 7, 8, 6], cameras={}))


def numbers_in(path: Path) -> list[int]:
    with stepwell.open(path, mode="r") as store:
        return [episode.metadata["number"] for episode in store]


def lengths_in(path: Path) -> list[int]:
    with stepwell.open(f"lerobot://{path}", mode="r") as store:
        return [int(length) for length in store.episodes.length]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["1", "3:5"], [0, 2, 5]),
        (["-1"], [0, 1, 2, 3, 4]),
        (["--where", "success"], [1, 3, 5]),
        (["0:3", "--where", "not success"], [0, 2, 3, 4, 5]),
        (["0,2", "0"], [1, 3, 4, 5]),
        (["--where", "length > 99"], [0, 1, 2, 3, 4, 5]),
        (["0:6"], []),
    ],
)
def test_rm_deletes_what_was_chosen_and_nothing_else(
    store_path: Path, words: list[str], left: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", str(store_path), *words, "--yes", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["num_deleted"], record["num_left"]) == (NUM_EPISODES - len(left), len(left))
    assert numbers_in(store_path) == left
    with stepwell.open(store_path, mode="r") as store:
        assert all(np.array_equal(each["x"], np.arange(each.metadata["number"] + 2)) for each in store)
    assert main(["verify", str(store_path)]) == 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "give EPISODES, or --where CONDITION"),
        (["1"], 2, "give --yes. Nothing was done"),
        (["9", "--yes"], 1, "no episode 9"),
        (["--where", "succes", "--yes"], 1, "Did you mean 'success'?"),
        (["--where", "success =", "--yes"], 1, "a value is missing"),
    ],
)
def test_rm_deletes_nothing_where_it_is_not_sure(
    store_path: Path, words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["rm", str(store_path), *words])
    except SystemExit as left:
        found = int(str(left.code))
    assert found == code
    assert told in capsys.readouterr().err
    assert numbers_in(store_path) == list(range(NUM_EPISODES))


def test_rm_while_others_record_deletes_and_says_what_waits(
    store_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stepwell.open(store_path) as store, store.writer() as writer:
        writer.append({"x": 5})
        assert main(["rm", str(store_path), "0", "--yes"]) == 0
        writer.append({"x": 6})
        writer.end_episode(number=6)
    assert numbers_in(store_path) == [1, 2, 3, 4, 5, 6]
    assert "1 episode deleted" in capsys.readouterr().out


def test_what_others_delete_while_the_question_stands_does_not_shift_the_numbers(
    store_path: Path, lerobot_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def delete_first(parser: object, question: str) -> None:
        with stepwell.open(store_path) as store:
            store.delete_episodes(0)

    monkeypatch.setattr("stepwell.cli.editing.ask", delete_first)
    assert main(["rm", str(store_path), "2"]) == 0
    assert numbers_in(store_path) == [1, 3, 4, 5]

    def delete_and_compact(parser: object, question: str) -> None:
        with stepwell.open(store_path) as store:
            store.delete_episodes(0)
            store.compact()

    monkeypatch.setattr("stepwell.cli.editing.ask", delete_and_compact)
    assert main(["rm", str(store_path), "2"]) == 1
    assert "indices may mean other episodes" in capsys.readouterr().err
    assert numbers_in(store_path) == [3, 4, 5]

    def delete_of_lerobot(parser: object, question: str) -> None:
        assert main(["rm", str(lerobot_path), "0", "--yes"]) == 0

    monkeypatch.setattr("stepwell.cli.editing.ask", delete_of_lerobot)
    assert main(["rm", str(lerobot_path), "2"]) == 1
    assert "was changed meanwhile" in capsys.readouterr().err
    assert lengths_in(lerobot_path) == [7, 8, 6]


def test_rm_of_lerobot_deletes_in_place(lerobot_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", str(lerobot_path), "--where", "length < 8", "--yes"]) == 0
    assert "2 episodes deleted, 2 left" in capsys.readouterr().out
    assert lengths_in(lerobot_path) == [9, 8]
    assert main(["rm", str(lerobot_path), "0:2", "--yes"]) == 1
    assert "Leave at least one" in capsys.readouterr().err
    assert lengths_in(lerobot_path) == [9, 8]


def test_what_is_neither_a_store_nor_lerobot_is_refused(
    store_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for words in (["rm", "empty", "0"], ["split", "empty", "out", "a=0"], ["merge", "empty", "--out", "out"]):
        assert (
            main([words[0], *(str(tmp_path / word) if word in ("empty", "out") else word for word in words[1:])]) == 1
        )
        assert "neither a store nor a directory of LeRobot" in capsys.readouterr().err
    assert main(["rm", str(tmp_path / "runs.wel"), "0"]) == 1
    assert "Did you mean 'runs.well'?" in capsys.readouterr().err
    assert main(["merge", str(store_path), str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 1
    assert "stepwell convert" in capsys.readouterr().err


def test_split_writes_parts_of_a_store(store_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    assert main(["split", str(store_path), str(out), "a=0:2", "b=5,3"]) == 0
    assert (numbers_in(out / "a"), numbers_in(out / "b")) == ([0, 1], [3, 5])
    assert main(["split", str(store_path), str(out / "f"), "train=0.5", "val=0.5"]) == 0
    assert (numbers_in(out / "f/train"), numbers_in(out / "f/val")) == ([0, 1, 2], [3, 4, 5])
    assert main(["split", str(store_path), str(out / "s"), "train=0.5", "val=0.5", "--seed", "7"]) == 0
    views = stepwell.View(stepwell.open(store_path, mode="r")).split(0.5, 0.5, seed=7)
    found = [numbers_in(out / "s" / name) for name in ("train", "val")]
    assert found == [view.episode_index.tolist() for view in views]
    assert numbers_in(store_path) == list(range(NUM_EPISODES))


def test_a_split_that_was_interrupted_goes_on(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, words = tmp_path / "parts", ["a=0:2", "b=2:4", "c=4:6"]
    real = stepwell.convert

    def interrupted(source: Any, target: Path, *arguments: Any, **options: Any) -> Any:
        if target.name == "b":
            raise KeyboardInterrupt
        return real(source, target, *arguments, **options)

    monkeypatch.setattr("stepwell.cli.editing.convert", interrupted)
    assert main(["split", str(store_path), str(out), *words]) == 130
    assert sorted(path.name for path in out.iterdir()) == ["a"]
    before = (out / "a" / "store.json").read_bytes()
    monkeypatch.undo()
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    assert main(["split", str(store_path), str(out), *words]) == 0
    assert "a is there already, and stays as it is" in capsys.readouterr().err
    assert (out / "a" / "store.json").read_bytes() == before
    assert [numbers_in(out / name) for name in "abc"] == [[0, 1], [2, 3], [4, 5]]


def test_a_split_into_something_else_touches_nothing(
    store_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "parts"
    assert main(["split", str(store_path), str(out), "a=0:2"]) == 0
    (out / "file").write_text("of others")
    for words, told in [
        (["b=3", "a=0:3"], "is not this part of"),
        (["b=3", "file=0:3"], "is not this part of"),
        (["a=1,2", "b=2,3"], "episode 2 is in 'a' and in 'b'"),
        (["b=0.01", "c=0.9"], "part 'b' has no episodes"),
        (["b=3", "c=0.5"], "fractions"),
        (["b=3", "b=4"], "a part comes twice"),
        (["b=3", "--seed", "1"], "--seed is of fractions"),
    ]:
        assert main(["split", str(store_path), str(out), *words]) == 1, words
        assert told in capsys.readouterr().err
        assert sorted(path.name for path in out.iterdir()) == ["a", "file"]
    assert numbers_in(out / "a") == [0, 1]


def test_split_and_merge_of_lerobot(lerobot_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, words = tmp_path / "parts", ["a=0.5", "b=0.5"]
    assert main(["split", str(lerobot_path), str(out), *words]) == 0
    assert (lengths_in(out / "a"), lengths_in(out / "b")) == ([9, 7], [8, 6])
    (out / "b").rename(tmp_path / "gone")
    assert main(["split", str(lerobot_path), str(out), *words]) == 0
    assert "a is there already, and stays as it is" in capsys.readouterr().err
    assert lengths_in(out / "b") == [8, 6]
    assert main(["split", str(lerobot_path), str(out), "a=0.75", "b=0.25"]) == 1
    assert "is not this part of" in capsys.readouterr().err
    assert main(["merge", str(out / "a"), str(out / "b"), "--out", str(tmp_path / "both")]) == 0
    assert main(["diff", str(lerobot_path), str(tmp_path / "both")]) == 0


@pytest.mark.parametrize("kind", ["store_path", "lerobot_path"])
def test_nothing_is_made_within_its_source(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    path: Path = request.getfixturevalue(kind)
    (tmp_path / "link").symlink_to(path)
    before = sorted(path.rglob("*"))
    # the data of LeRobot are replaced by the next edit, and what lies among them would be gone
    for inner in ("part", "data/part", "new/part"):
        assert main(["merge", str(path), "--out", str(tmp_path / "link" / inner)]) == 1
        assert main(["split", str(path), str(path / inner), "a=0:2"]) == 1
    told = capsys.readouterr().err
    assert told.count("Choose a path outside of it") == 6
    assert sorted(path.rglob("*")) == before


def test_merge_of_stores_is_of_all_episodes(store_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    assert main(["split", str(store_path), str(out), "a=0:2", "b=2:6"]) == 0
    assert main(["merge", str(out / "a"), str(out / "b"), "--out", str(tmp_path / "both.well")]) == 0
    assert main(["diff", str(store_path), str(tmp_path / "both.well")]) == 0
    assert main(["merge", str(out / "a"), str(out / "b"), "--out", str(tmp_path / "both.well")]) == 1


@given(st.sets(st.integers(0, 12)))
def test_ranges_name_the_numbers(numbers: set[int]) -> None:
    found: set[int] = set()
    for part in filter(None, _ranges(sorted(numbers)).split(", ")):
        first, colon, stop = part.partition(":")
        found |= set(range(int(first), int(stop))) if colon else {int(first)}
    assert found == numbers


def test_rm_leaves_out_what_is_still_recorded(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stepwell.open(store_path, mode="a")
    with store.writer() as writer:
        writer.append({"x": 1})
        assert main(["rm", str(store_path), "--where", "length < 3", "--yes"]) == 0
        captured = capsys.readouterr()
        assert "1 episode deleted, 6 left" in captured.out
        assert "episode 6 of" in captured.err and "still being recorded, and left out" in captured.err
        assert main(["rm", str(store_path), "0", "5", "--yes"]) == 1
        captured = capsys.readouterr()
        assert "episode 5 of" in captured.err and "nothing was deleted" in captured.err
        writer.end_episode()
    assert stepwell.open(store_path, mode="r").episodes.length.tolist() == [3, 4, 5, 6, 7, 1]
