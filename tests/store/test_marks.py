"""Marks of episodes: part of their metadata, kept by every copy, and nothing that was recorded changes."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import CorruptSegmentError, EpisodeNotFoundError, ReadOnlyError, StepwellError
from stepwell.formats.conversion import convert
from stepwell.store import concatenate

NUM = 6


def make(path: Path, first: int = 0) -> Any:
    store = stepwell.create(path, {"x": stepwell.Array((), "<f4")})
    for number in range(first, first + NUM):
        with store.writer() as writer:
            writer.add_episode({"x": np.full(3, number, np.float32)}, terminated=True, seed=number)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Any:
    return make(tmp_path / "s.well")


def marked(store: Any) -> dict[int, tuple[Any, Any]]:
    """Return seed to mark and note of every episode that has one."""
    facts = [episode.metadata for episode in store]
    return {each["seed"]: (each.get("mark"), each.get("note")) for each in facts if {"mark", "note"} & each.keys()}


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_mark_is_metadata_and_no_recorded_byte_changes(store: Any) -> None:
    before = files_of(store.path)
    assert store.mark_episodes([1, 3], "good") == 2
    store.mark_episodes(3, note="slow \u2028 <b>")
    assert marked(store) == {1: ("good", None), 3: ("good", "slow \u2028 <b>")}
    after = files_of(store.path)
    assert after.keys() - before.keys() == {"marks.json"}
    assert {name: after[name] for name in before} == before
    store.mark_episodes([1, 3], "", note="")
    assert marked(store) == {}


changes = st.lists(
    st.tuples(
        st.lists(st.integers(0, NUM - 1), min_size=1, max_size=3, unique=True),
        st.sampled_from([None, "", "good", "bad"]),
        st.one_of(st.none(), st.just(""), st.text(max_size=20)),
    ),
    max_size=6,
)


@given(changes)
@settings(max_examples=15, deadline=None)
def test_changes_add_up_as_a_dict_does(tmp_path_factory: pytest.TempPathFactory, given_changes: Any) -> None:
    path = tmp_path_factory.mktemp("marks") / "s.well"
    store = make(path)
    model: dict[int, dict[str, str]] = {}
    for episodes, mark, note in given_changes:
        store.mark_episodes(episodes, mark, note=note)
        for episode in episodes:
            entry = model.setdefault(episode, {})
            entry.update({key: text for key, text in (("mark", mark), ("note", note)) if text is not None})
    want = {n: (e.get("mark") or None, e.get("note") or None) for n, e in model.items() if any(e.values())}
    with stepwell.open(path, mode="r") as other:
        assert marked(other) == marked(store) == want
    shutil.rmtree(path)


def test_another_process_sees_them_when_it_refreshes(store: Any) -> None:
    other = stepwell.open(store.path, mode="r")
    view = stepwell.View(other)
    store.mark_episodes([0, 2], "bad")
    assert marked(other) == {}
    assert other.refresh()
    assert view.refresh().select(where={"mark": "bad"}).episode_index.tolist() == [0, 2]


def test_copies_keep_them(store: Any, tmp_path: Path) -> None:
    store.mark_episodes([1, 4], "good", note="n")
    want = {1: ("good", "n"), 4: ("good", "n")}
    convert(store, tmp_path / "c.well", dict(store.schema), episodes=[1, 2, 4], workers=0)
    assert marked(stepwell.open(tmp_path / "c.well")) == want
    assert marked(stepwell.open(store.checkpoint(tmp_path / "k.well"))) == want
    more = make(tmp_path / "m.well", first=10)
    more.mark_episodes(0, "bad")
    both = concatenate(tmp_path / "b.well", [more, store])
    assert marked(both) == {**want, 10: ("bad", None)}
    convert(both, tmp_path / "d.well", dict(both.schema), workers=0)
    assert marked(stepwell.open(tmp_path / "d.well")) == {**want, 10: ("bad", None)}
    both.delete_episodes([0, 1])
    both.compact()
    assert marked(both) == want


def test_a_view_that_was_pickled_shows_them(store: Any) -> None:
    store.mark_episodes(2, "bad")
    view = pickle.loads(pickle.dumps(stepwell.View(store)))
    assert [part.table.metadata(2)["mark"] for part in view.parts] == ["bad"]


def test_what_cannot_be_said_is_refused(store: Any) -> None:
    for arguments, kind in [
        ((0, "great"), StepwellError),
        ((NUM, "good"), EpisodeNotFoundError),
    ]:
        with pytest.raises(kind):
            store.mark_episodes(*arguments)
    with pytest.raises(StepwellError, match="2000"):
        store.mark_episodes(0, note="x" * 2001)
    with pytest.raises(StepwellError, match="Allowed: text"):
        store.mark_episodes(0, note="\ud800")
    with pytest.raises(ReadOnlyError):
        stepwell.open(store.path, mode="r").mark_episodes(0, "good")
    assert not (store.path / "marks.json").exists()


def test_a_damaged_file_is_told_where_metadata_are_read_and_rows_are_read_all_the_same(store: Any) -> None:
    store.mark_episodes(0, "good")
    file = store.path / "marks.json"
    file.write_bytes(file.read_bytes().replace(b"good", b"evil"))
    other = stepwell.open(store.path, mode="r")
    assert other[0]["x"].tolist() == [0, 0, 0]
    with pytest.raises(CorruptSegmentError, match=r"marks\.json: .* all that was recorded can be read"):
        _ = other[0].metadata
    assert any("from a copy. It holds marks and notes alone" in str(fault) for fault in other.verify().findings)
    with pytest.raises(CorruptSegmentError):
        store.mark_episodes(1, "good")


def test_of_a_data_set_in_place_they_lie_among_the_users_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from stepwell.testing import tiny_lerobot

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tiny_lerobot(tmp_path / "set", episodes=4, cameras={})
    before = files_of(root)
    store = stepwell.open(f"lerobot://{root}", mode="r")
    store.mark_episodes([1, 3], "good")
    assert files_of(root) == before
    assert [episode.metadata.get("mark") for episode in store] == [None, "good", None, "good"]
    assert len(list((tmp_path / "home").rglob("*.json"))) == 1
    part = stepwell.open(f"lerobot://{root}?episodes=1:3", mode="r")
    assert [episode.metadata.get("mark") for episode in part] == [None, None]
    convert(store, tmp_path / "c.well", dict(store.schema), episodes=[0, 3], workers=0)
    assert [episode.metadata.get("mark") for episode in stepwell.open(tmp_path / "c.well")] == [None, "good"]
    shutil.rmtree(tmp_path / "cache")
    again = stepwell.open(f"lerobot://{root}", mode="r")
    assert [episode.metadata.get("mark") for episode in again] == [None, "good", None, "good"]
