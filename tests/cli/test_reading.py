"""``ls`` with its options, ``head``, ``stats`` and ``diff``, beside what the library says."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.cli.main import main
from stepwell.windows.comparing import compare

LENGTHS = (4, 6, 8, 5, 6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five episodes: names of axes, NaN, a picture, a text, metadata of several kinds."""
    path = tmp_path_factory.mktemp("runs") / "runs.well"
    features = {
        "state": stepwell.Array(2, final=True, names=["x", "y"]),
        "reward": stepwell.Array((), "float64"),
        "camera": stepwell.Image((16, 16, 3)),
        "task": stepwell.Text(),
    }
    store = stepwell.create(path, features, fps=10)
    with store.writer() as writer:
        for number, length in enumerate(LENGTHS):
            rng = np.random.default_rng(number)
            columns = {
                "state": rng.normal(size=(length + 1, 2)).astype(np.float32),
                "reward": np.where(np.arange(length) == 1, np.nan, np.arange(length)),
                "camera": rng.integers(0, 255, (length, 16, 16, 3)).astype(np.uint8),
                "task": [f"task {number}"] * length,
            }
            more: dict[str, Any] = {"score": number / 2} if number != 2 else {}
            writer.add_episode(columns, terminated=number % 2 == 0, success=number > 2, task=f"push {number}", **more)
    return path


def listed(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> list[int]:
    capsys.readouterr()
    assert main(["ls", str(path), "--json", *words]) == 0
    return [json.loads(line)["episode_index"] for line in capsys.readouterr().out.splitlines()]


def test_ls_chooses_sorts_and_cuts(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, want in [
        (["--where", "length > 5"], [1, 2, 4]),
        (["--where", "not success, terminated"], [0, 2]),
        (["--where", "task ~ PUSH and score >= 1"], [3, 4]),
        (["--sort", "length"], [0, 3, 1, 4, 2]),
        (["--sort", "length", "--reverse"], [2, 1, 4, 3, 0]),
        (["--sort", "score"], [0, 1, 3, 4, 2]),
        (["--sort", "score", "--reverse"], [4, 3, 1, 0, 2]),
        (["--reverse"], [4, 3, 2, 1, 0]),
        (["--first", "2"], [0, 1]),
        (["--last", "2"], [3, 4]),
        (["--where", "length > 4", "--sort", "length", "--first", "3"], [3, 1, 4]),
        (["--where", "length > 99", "--last", "3"], []),
    ]:
        assert listed(capsys, runs, *words) == want, words


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.sampled_from(["<", "<=", "=", ">", ">=", "!="]), st.integers(1, 6), st.booleans())
def test_ls_means_what_a_view_means(runs: Path, limit: int, op: str, count: int, is_reversed: bool) -> None:
    import contextlib
    import io

    printed = io.StringIO()
    words = ["--where", f"length {op} {limit}", "--sort", "length", "--first", str(count)]
    with contextlib.redirect_stdout(printed):
        assert main(["ls", str(runs), "--json", *words, *(["--reverse"] if is_reversed else [])]) == 0
    found = [json.loads(line) for line in printed.getvalue().splitlines()]
    python = {"=": "=="}.get(op, op)
    want = [n for n, length in enumerate(LENGTHS) if eval(f"{length} {python} {limit}")]
    want.sort(key=lambda n: LENGTHS[n], reverse=is_reversed)
    assert [each["episode_index"] for each in found] == want[:count]


def test_what_ls_cannot_mean_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, want in [
        (["--where", "lenght > 3"], "no episode has 'lenght'. Did you mean 'length'?"),
        (["--sort", "scor"], "no episode has 'scor'. Did you mean 'score'?"),
        (["--where", "length >"], "a value is missing"),
        (["--where", "__import__('os')"], "condition"),
    ]:
        assert main(["ls", str(runs), *words]) == 1
        captured = capsys.readouterr()
        assert want in captured.err and captured.err.count("\n") == 1
        assert captured.out == ""


def test_head_is_a_table_of_the_first_steps(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["head", str(runs), "--episode", "-1", "-n", "3"]) == 0
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title == "episode 4, 3 steps of 6"
    assert head.split() == ["step", "state", "reward", "camera", "task"]
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert "raw 16x16x3 uint8" in lines[0] and '"task 4"' in lines[0] and "nan" in lines[1]
    assert main(["head", str(runs), "-n", "99", "--feature", "task", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["step_index"] for record in records] == [0, 1, 2, 3]
    assert records[0] == {"episode_index": 0, "step_index": 0, "values": {"task": "task 0"}}
    assert main(["head", str(runs), "--feature", "tsk"]) == 1
    assert "no feature 'tsk'. Did you mean 'task'?" in capsys.readouterr().err


def test_head_decodes_no_pictures(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = stepwell.Episode.read_rows
    monkeypatch.setattr(
        stepwell.Episode, "read_rows", lambda self, name, *rows: read.append(name) or real(self, name, *rows)
    )
    assert main(["head", str(runs)]) == 0
    assert read == ["state", "reward", "task"]


def test_stats_are_those_of_the_library(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(runs), "--json", "--where", "length > 5", "--episodes", "1:4"]) == 0
    record = json.loads(capsys.readouterr().out)
    view = stepwell.View(stepwell.open(runs, mode="r")).select([1, 2])
    assert (record["num_episodes"], record["num_steps"]) == (2, 14)
    assert record["features"].keys() == {"state", "reward", "camera"}
    for name, statistics in view.statistics().items():
        told = record["features"][name]
        assert {key: told[key] for key in statistics.to_json()} == statistics.to_json()
    assert record["features"]["state"]["names"] == ["x", "y"]


def test_stats_have_a_line_for_each_dimension(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(runs)]) == 0
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert first == "5 episodes, 29 steps"
    assert head.split() == [
        "feature",
        "dim",
        "mean",
        "std",
        "min",
        "max",
        "q01",
        "q10",
        "q50",
        "q90",
        "q99",
        "count",
        "nan",
    ]
    assert [line.split()[:2] for line in lines[:2]] == [["state", "x"], ["y", lines[1].split()[1]]]
    (reward,) = [line.split() for line in lines if line.startswith("reward")]
    assert reward[-2:] == ["24", "5"]
    assert lines[-1] == "without statistics: task"
    assert main(["stats", str(runs), "--feature", "reward", "--where", "success"]) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "2 episodes of 5, 11 steps"
    assert len(lines) == 1
    assert main(["stats", str(runs), "--episodes", "3:9"]) == 1
    assert "runs.well has 5 episodes, 0:5" in capsys.readouterr().err


def test_equal_stores_are_equal_however_they_are_stored(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stepwell.convert(runs, tmp_path / "small.well", {"state": "delta"}, workers=1)
    assert main(["diff", str(runs), str(tmp_path / "small.well")]) == 0
    assert capsys.readouterr().out == "equal: 5 episodes, 29 steps, 116 rows compared\n"


def altered(path: Path, target: Path, change: Any) -> stepwell.Store:
    """Write a store of the same episodes but for what ``change`` does to their columns."""
    old = stepwell.open(path, mode="r")
    new = stepwell.create(target, dict(old.schema or {}), fps=old.fps)
    with new.writer() as writer:
        for episode in old:
            columns = {name: episode[name] for name in episode}
            columns = {name: value.copy() if hasattr(value, "copy") else value for name, value in columns.items()}
            ends = {"terminated": episode.terminated, "truncated": episode.truncated}
            metadata = dict(episode.metadata)
            change(episode.index, columns, ends, metadata)
            writer.add_episode(columns, **ends, **metadata)
    return new


def test_the_first_difference_of_values_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(index: int, columns: Any, ends: Any, metadata: Any) -> None:
        if index == 2:
            columns["reward"][[3, 5]] += 0.25
            columns["camera"][7, 0, 0, 0] ^= 1
            columns["state"][-1] += 1
        if index == 3:
            columns["task"][4] = "other"

    altered(runs, tmp_path / "other.well", change)
    words = ["diff", str(runs), str(tmp_path / "other.well")]
    assert main([*words, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    values = record["values"]
    assert record["num_episodes"] == 0 and record["features"] == []
    assert [(values[name]["episode"], values[name]["step"]) for name in values] == [(2, 8), (2, 3), (2, 7), (3, 4)]
    assert (values["reward"]["num_steps"], values["reward"]["largest"]) == (2, 0.25)
    assert (values["task"]["first"], values["task"]["second"]) == ('"task 3"', '"other"')
    assert main(words) == 1
    assert "reward: 2 steps differ, by 0.25 at most; the first at episode 2, step 3: 3. and 3.25" in (
        capsys.readouterr().out
    )
    assert main([*words, "--feature", "reward", "--feature", "camera", "--tolerance", "1"]) == 0
    assert main([*words, "--no-values"]) == 0


def test_other_features_episodes_and_metadata_are_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(index: int, columns: Any, ends: Any, metadata: Any) -> None:
        if index == 1:
            ends["truncated"] = True
            metadata["score"] = 9
        if index == 2:
            metadata["more"] = 1

    altered(runs, tmp_path / "other.well", change)
    assert main(["diff", str(runs), str(tmp_path / "other.well")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "episode 1: truncated false and true, score 0.5 and 9",
        "episode 2: more none and 1",
    ]
    few = stepwell.create(tmp_path / "few.well", {"reward": stepwell.Array((), "float32")})
    with few.writer() as writer:
        writer.add_episode(
            {"reward": np.zeros(4, np.float32)}, terminated=True, success=False, task="push 0", score=0.0
        )
    assert main(["diff", str(few.path), str(runs)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "reward: dtype float32 and float64" in lines
    assert "state: only in the second" in lines
    assert "episodes: 1 and 5; those that both have are compared" in lines
    assert main(["diff", str(few.path), str(runs), "--feature", "rewrd"]) == 1
    assert "Did you mean 'reward'?" in capsys.readouterr().err


arrays = st.lists(st.sampled_from([0.0, 1.0, -1.5, np.nan, np.inf, 3e38]), min_size=3, max_size=3)


@settings(max_examples=15, deadline=None)
@given(arrays, arrays, st.sampled_from([0.0, 1.0, 3.0]))
def test_two_columns_are_compared_as_numpy_does(
    tmp_path_factory: pytest.TempPathFactory, one: list[float], two: list[float], tolerance: float
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    views = []
    for name, values in (("a", one), ("b", two)):
        store = stepwell.create(folder / f"{name}.well", {"x": stepwell.Array(())})
        with store.writer() as writer:
            writer.add_episode({"x": np.array(values, np.float32)})
        views.append(stepwell.View(store))
    found = compare(*views, tolerance=tolerance).values.get("x")
    mine, theirs = np.array(one, np.float32), np.array(two, np.float32)
    with np.errstate(invalid="ignore"):
        near = np.isclose(mine.astype(float), theirs.astype(float), rtol=0, atol=tolerance, equal_nan=True)
    assert (0 if found is None else found.num_steps) == np.count_nonzero(~near)
    if found is not None:
        assert found.step == np.flatnonzero(~near)[0]
    shutil.rmtree(folder)


def test_chunks_and_rows_of_any_size_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepwell.windows.comparing.CHUNK_ROWS", 2)
    monkeypatch.setattr("stepwell.windows.comparing.CHUNK_BYTES", 24)
    features = {"points": stepwell.Array((None, 2)), "blob": stepwell.Bytes(), "x": stepwell.Array(3)}
    for name in ("a", "b"):
        store = stepwell.create(tmp_path / f"{name}.well", features)
        with store.writer() as writer:
            x = np.zeros((7, 3), np.float32)
            x[[1, 6]] += name == "b"
            points = [np.zeros((1 + n + (name == "b" and n == 3), 2), np.float32) for n in range(7)]
            writer.add_episode({"points": points, "blob": [b"a"] * 6 + [name.encode()], "x": x})
    assert main(["diff", str(tmp_path / "a.well"), str(tmp_path / "b.well"), "--json"]) == 1
    values = json.loads(capsys.readouterr().out)["values"]
    assert {name: (each["num_steps"], each["step"], each["largest"]) for name, each in values.items()} == {
        "points": (1, 3, None),
        "blob": (1, 6, None),
        "x": (2, 1, 1.0),
    }
