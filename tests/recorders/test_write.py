import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import parallel_sources as sources
import pytest

import stepwell
from stepwell.errors import SchemaError, StepError, StepwellError, StoreExistsError, WorkerError
from stepwell.progress import RateBar
from stepwell.recorders import EpisodeData, write_episodes, write_samples


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    yield
    assert multiprocessing.active_children() == []


def files_of(store):
    """Every byte that the store's segments hold, but for the moments of their recording."""
    found = []
    for segment in store.segments:
        files = {
            path.name: path.read_bytes() for path in segment.path.iterdir() if path.suffix in (".npy", ".bin", ".jsonl")
        }
        records = np.load(segment.path / "episodes.npy").copy()
        records["time_ns"] = 0
        found.append((segment.ordinal, {**files, "episodes.npy": records.tobytes()}))
    return found


def actions_of(store):
    return [np.asarray(episode["action"]).tolist() for episode in store]


@pytest.mark.usefixtures("spawned_workers")
@pytest.mark.parametrize("chunk_episodes", [None, 5])
def test_the_store_is_the_same_for_every_number_of_workers(tmp_path, chunk_episodes):
    stores = [
        write_episodes(
            tmp_path / f"{workers}.well",
            sources.RichEpisodes(12),
            schema=sources.SCHEMA,
            workers=workers,
            chunk_episodes=chunk_episodes,
        )
        for workers in (0, 1, 2, 3)
    ]
    first = files_of(stores[0])
    assert len(first) == (12 if chunk_episodes is None else 3)
    assert all(files_of(store) == first for store in stores[1:])


def test_episodes_come_back_in_the_order_of_the_source(tmp_path):
    store = write_episodes(tmp_path / "rich.well", sources.RichEpisodes(12), schema=sources.SCHEMA, workers=2)
    assert len(store) == 12
    for index, episode in enumerate(store):
        want = sources.rich_episode(index)
        assert (episode.terminated, episode.truncated, episode.metadata) == (
            want.terminated,
            want.truncated,
            want.metadata,
        )
        assert np.array_equal(episode["observation.image"], want.columns["observation"]["image"])
        assert all(map(np.array_equal, episode["observation.points"], want.columns["observation"]["points"]))
        assert list(episode["task"]) == want.columns["task"]
        assert list(episode["blob"]) == want.columns["blob"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_gives_the_same_episodes(tmp_path, workers):
    episodes = (sources.rich_episode(index) for index in range(23))
    store = write_episodes(tmp_path / "it.well", episodes, schema=sources.SCHEMA, workers=workers, chunk_episodes=5)
    same = write_episodes(
        tmp_path / "ix.well", sources.RichEpisodes(23), schema=sources.SCHEMA, workers=0, chunk_episodes=5
    )
    assert files_of(store) == files_of(same)


def test_the_schema_is_inferred_from_the_first_episode(tmp_path):
    points = [np.zeros((n, 2), np.float32) for n in (0, 2, 1)]
    episode = {"state": np.zeros((3, 4)), "action": [1, 2], "points": points, "name": ["a", "b"]}
    store = write_episodes(tmp_path / "inferred.well", [episode, episode], workers=0)
    assert {name: str(feature) for name, feature in store.schema.items()} == {
        "state": "raw 4 float64",
        "action": "raw scalar int64",
        "points": "raw ?x2 float32",
        "name": "raw ? text",
    }
    assert store.schema.final_names == ("state", "points")
    assert [len(p) for p in store[1]["points"]] == [0, 2, 1]


def test_episodes_are_appended_to_a_store_that_is_given(tmp_path):
    store = write_episodes(tmp_path / "twice.well", sources.Episodes(5), workers=0)
    assert write_episodes(store, sources.Episodes(3), workers=2) is store
    assert [actions[0][0] for actions in actions_of(store)] == [0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_indexable", [True, False])
def test_samples_become_episodes_of_one_step(tmp_path, workers, is_indexable):
    source = sources.Samples(50)
    given = source if is_indexable else (source[i] for i in range(50))
    store = write_samples(tmp_path / "samples.well", given, names=("image", "label"), workers=workers, chunk_samples=9)
    assert (len(store), store.num_steps, len(store.segments)) == (50, 50, 6)
    assert [int(episode["label"][0]) for episode in store] == [i % 10 for i in range(50)]
    assert np.asarray(store[33]["image"])[0, 0, 0, 0] == 33


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (sources.RaisingEpisodes(at=13), r"item 13 .*ZeroDivisionError[\s\S]*in strange"),
        (sources.ShortEpisodes(at=13), r"no item 13, although its len\(\) is 40"),
        (sources.WrongEpisodes(at=13), r"item 13 .*StepError: feature 'action': got dtype float64"),
        (sources.RaisingEpisodes(at=0), r"item 0 .*ZeroDivisionError"),
    ],
)
def test_a_failing_item_is_named_and_nothing_is_left(tmp_path, workers, source, message):
    with pytest.raises(WorkerError, match=message):
        write_episodes(tmp_path / "failed.well", source, workers=workers)
    assert not (tmp_path / "failed.well").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_takes_back_only_what_the_call_wrote(tmp_path, workers):
    store = write_episodes(tmp_path / "kept.well", sources.Episodes(5), workers=0)
    before = files_of(store)
    with pytest.raises(WorkerError, match="item 13"):
        write_episodes(store, sources.RaisingEpisodes(at=13), workers=workers, chunk_episodes=4)
    assert files_of(store) == before
    assert files_of(stepwell.open(store.path)) == before
    assert len(write_episodes(store, sources.Episodes(5), workers=0)) == 10


@pytest.mark.parametrize(
    ("source", "how"), [(sources.KilledEpisodes(at=9), "SIGKILL"), (sources.ExitingEpisodes(at=9), "exit code 3")]
)
def test_a_worker_that_dies_is_detected_and_its_item_named(tmp_path, source, how):
    store = write_episodes(tmp_path / "killed.well", sources.Episodes(2), workers=0)
    with pytest.raises(WorkerError, match=f"died at item 9 .*{how}"):
        write_episodes(store, source, workers=2)
    assert len(stepwell.open(store.path)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_raises_is_named_by_item(tmp_path, workers):
    def episodes():
        yield from (sources.Episodes()[i] for i in range(7))
        raise OSError("the disk is gone")

    with pytest.raises(WorkerError, match=r"item 7 .*the disk is gone"):
        write_episodes(tmp_path / "it.well", episodes(), workers=workers, chunk_episodes=2)
    assert not (tmp_path / "it.well").exists()


def test_an_item_that_cannot_be_sent_is_named(tmp_path):
    unsendable = {"action": np.zeros((2, 1)), "hook": lambda: None}
    episodes = (unsendable if i == 4 else {"action": np.zeros((2, 1))} for i in range(9))
    with pytest.raises(WorkerError, match="items 4 to 5 cannot be sent"):
        write_episodes(tmp_path / "it.well", episodes, workers=2, chunk_episodes=2)


def test_a_source_that_cannot_be_sent_is_refused(tmp_path):
    with pytest.raises(WorkerError, match=r"an open file cannot be sent.*workers=1"):
        write_episodes(tmp_path / "x.well", sources.UnpicklableEpisodes(), workers=2)
    with pytest.raises(WorkerError, match="could not begin: RuntimeError: cannot be loaded here"):
        write_episodes(tmp_path / "x.well", sources.UnloadableEpisodes(), workers=2)
    assert not (tmp_path / "x.well").exists()
    store = write_episodes(tmp_path / "x.well", sources.UnpicklableEpisodes(), workers=2, start_method="fork")
    assert actions_of(store) == [sources.Episodes()[i]["action"].tolist() for i in range(40)]


@pytest.mark.parametrize("source", [[], iter(())])
def test_an_empty_source_is_refused(tmp_path, source):
    with pytest.raises(StepError, match="empty"):
        write_episodes(tmp_path / "none.well", source)
    assert not (tmp_path / "none.well").exists()


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path):
    path = tmp_path / "x.well"
    with pytest.raises(StepError, match="a dict"):
        write_episodes(path, {"action": np.zeros((3, 2))})
    with pytest.raises(StepwellError, match="chunk of 0"):
        write_episodes(path, sources.Episodes(), chunk_episodes=0)
    with pytest.raises(StepwellError, match="workers=-1"):
        write_episodes(path, sources.Episodes(), workers=-1)
    with pytest.raises(WorkerError, match=r"item 0 .*got a tuple.*names="):
        write_samples(path, sources.Samples(3), workers=0)
    with pytest.raises(WorkerError, match=r"item 0 .*2 parts, names= has 1"):
        write_samples(path, sources.Samples(3), names=("image",), workers=0)
    assert not path.exists()
    write_episodes(path, sources.Episodes(2), workers=0)
    with pytest.raises(StoreExistsError):
        write_episodes(path, sources.Episodes(2), workers=0)
    with pytest.raises(SchemaError, match="another schema"):
        write_episodes(stepwell.open(path), sources.Episodes(2), schema={"pose": stepwell.Array(3)}, workers=0)
    assert len(stepwell.open(path)) == 2


def test_ctrl_c_ends_the_workers_and_takes_everything_back(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RateBar, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_episodes(tmp_path / "x.well", sources.SlowEpisodes(tmp_path), workers=2)
    assert not (tmp_path / "x.well").exists()


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "import parallel_sources as sources\n"
        "from stepwell.recorders import write_episodes\n"
        "folder = pathlib.Path(sys.argv[2])\n"
        "write_episodes(folder / 'x.well', sources.SlowEpisodes(folder / 'pids'), workers=2, start_method='fork')\n"
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)])
    deadline = time.monotonic() + 120
    while len(list(pids.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [int(path.name) for path in pids.iterdir() if int(path.name) != parent.pid]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert len(workers) == 2
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import parallel_sources as sources\n"
        "from stepwell.recorders import write_episodes\n"
        "write_episodes(sys.argv[2], sources.Episodes(), workers=2)\n"
    )
    arguments = [sys.executable, script, Path(__file__).parent, tmp_path / "x.well"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 1
    assert re.search(r'WorkerError: a worker died before item \d.*if __name__ == "__main__":', ended.stderr)
    assert not (tmp_path / "x.well").exists()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a process that ended and that nobody waits for is a zombie
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_progress_tells_steps_and_bytes_a_second(tmp_path, capsys):
    write_episodes(tmp_path / "bar.well", sources.Episodes(9), workers=0, progress=True)
    told = capsys.readouterr().err
    assert "9/9" in told and "steps/s" in told and "MB/s" in told
    write_episodes(tmp_path / "silent.well", sources.Episodes(9), workers=0, progress=False)
    assert capsys.readouterr().err == ""


def test_episode_data_of_a_plain_mapping_has_no_ends(tmp_path):
    store = write_episodes(
        tmp_path / "plain.well", [{"action": np.zeros((2, 1))}, EpisodeData({"action": np.ones((1, 1))})]
    )
    assert [(e.terminated, e.truncated, e.metadata) for e in store] == [(False, False, {})] * 2


def test_fps_is_that_of_a_new_store_and_cannot_change_a_store_s(tmp_path: Path) -> None:
    episodes = [{"x": np.zeros(3, np.float32)}]
    store = write_episodes(tmp_path / "a.well", episodes, fps=30, workers=0)
    assert store.fps == 30
    assert len(write_episodes(store, episodes, fps=30, workers=0)) == 2
    with pytest.raises(StepwellError, match="fps=10, and the store has 30"):
        write_episodes(store, episodes, fps=10, workers=0)
