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
from stepwell.codecs import make_codec
from stepwell.errors import CorruptSegmentError, EpisodeNotFoundError, LeftOutWarning, ReadOnlyError, StepwellError
from stepwell.formats.conversion import convert
from stepwell.json_text import seal_json
from stepwell.store import concatenate
from stepwell.store.mark_keys import MarkedColumns, find_in_place, keys_in_place
from stepwell.store.marks import num_lost_marks, read_marks
from stepwell.tfds import write_rlds
from stepwell.webdataset import write_webdataset

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
    assert marked(other) == {}
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
    assert [episode.metadata.get("mark") for episode in part] == ["good", None]
    convert(store, tmp_path / "c.well", dict(store.schema), episodes=[0, 3], workers=0)
    assert [episode.metadata.get("mark") for episode in stepwell.open(tmp_path / "c.well")] == [None, "good"]
    shutil.rmtree(tmp_path / "cache")
    again = stepwell.open(f"lerobot://{root}", mode="r")
    assert [episode.metadata.get("mark") for episode in again] == [None, "good", None, "good"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home" / "stepwell" / "marks"


def marks_of(place: str) -> list[Any]:
    with stepwell.open(place, mode="r") as store:
        return [episode.metadata.get("mark") for episode in store]


def test_marks_of_a_lerobot_directory_follow_their_episodes_when_others_are_deleted(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from stepwell.lerobot.edits import delete
    from stepwell.testing import tiny_lerobot

    root = tiny_lerobot(tmp_path / "set", lengths=[8] * 6, cameras={})
    place = f"lerobot://{root}"
    with stepwell.open(place, mode="r") as store:
        store.mark_episodes([1, 4], "good")
        store.mark_episodes([2], "bad")
    delete(root, [0, 2])
    # 1, 3, 4, 5 are left
    assert marks_of(place) == ["good", None, "good", None]
    with stepwell.open(place, mode="r") as store:
        assert num_lost_marks(store) == 1
        store.mark_episodes(1, "bad")
        store.mark_episodes(0, "")
    assert marks_of(place) == [None, "bad", "good", None]
    (file,) = home.rglob("*.json")
    convert(f"lerobot://{root}?episodes=1:4", tmp_path / "c.well", workers=0)
    assert marks_of(str(tmp_path / "c.well")) == ["bad", "good", None]
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"good", b"evil"))
    with pytest.warns(LeftOutWarning, match="marks were not carried over"):
        convert(root, tmp_path / "d.well", workers=0)
    assert marks_of(str(tmp_path / "d.well")) == [None] * 4
    file.write_bytes(whole)
    # the mark whose episode is gone is kept
    assert [entry for key, entry in read_marks(str(file)).items() if key.startswith("2:")] == [{"mark": "bad"}]


def test_a_file_of_marks_of_an_earlier_release_is_read_and_taken_over(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from stepwell.lerobot.edits import delete
    from stepwell.testing import tiny_lerobot

    root = tiny_lerobot(tmp_path / "set", lengths=[8, 9, 9], cameras={})
    place = f"lerobot://{root}"
    with stepwell.open(place, mode="r") as store:
        cached = store.path
    old = home / "lerobot" / f"{cached.parent.name}-{cached.stem.rpartition('-')[2]}.json"
    old.parent.mkdir(parents=True)
    old.write_bytes(seal_json({"marks": {"1:9": {"mark": "good"}, "2:8": {"mark": "bad"}}}))
    assert marks_of(place) == [None, "good", None]
    with stepwell.open(place, mode="r") as store:
        store.mark_episodes(0, "bad")
    assert not old.exists()
    assert marks_of(place) == ["bad", "good", None]
    delete(root, [0])
    assert marks_of(place) == ["good", None]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(2, 4)), min_size=1, max_size=8), st.data())
@settings(max_examples=20, deadline=None)
def test_an_episode_is_found_by_its_rows_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Episodes of few values, of which some are equal: against a list of them."""
    folder = tmp_path_factory.mktemp("found")

    def made(name: str, chosen: list[tuple[int, int]]) -> tuple[Any, MarkedColumns]:
        store = stepwell.create(folder / name, {"x": stepwell.Array(20, "<f4"), "index": stepwell.Array((), "<i8")})
        with store.writer() as writer:
            for number, (value, length) in enumerate(chosen):
                writer.add_episode({"x": np.full((length, 20), value, np.float32), "index": np.full(length, number)})
        segments, table = store.listing
        return segments, MarkedColumns.of(table)

    keys = keys_in_place(*made("a.well", episodes), range(len(episodes)))
    kept = data.draw(st.lists(st.integers(0, len(episodes) - 1), max_size=len(episodes), unique=True))
    found = find_in_place(*made("b.well", [episodes[number] for number in kept]), keys)
    shutil.rmtree(folder)
    for place, key in found.items():
        assert episodes[keys.index(key)] == episodes[kept[place]]
    assert len(set(found.values())) == len(found)
    # as many of each kind as there are of it: none is lost, none is shown twice
    assert sorted(episodes[keys.index(key)] for key in found.values()) == sorted(episodes[number] for number in kept)


def test_marks_of_other_formats_follow_their_episodes(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("imagecodecs", reason="needs imagecodecs")
    images = tmp_path / "images"
    rng = np.random.default_rng(0)
    codec = make_codec(stepwell.Image((8, 8, 3), codec="png"))
    for number in range(6):
        path = images / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(codec.encode(rng.integers(0, 255, (8, 8, 3), np.uint8)))
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))
    place = f"folders://{images}"
    with stepwell.open(place, mode="r") as store:
        store.mark_episodes([1, 4], "good")
    (images / names[0]).unlink()
    assert marks_of(place) == ["good", None, None, "good", None]
    convert(place, tmp_path / "png.well", episodes=slice(2, 5), workers=0)
    assert marks_of(str(tmp_path / "png.well")) == [None, "good", None]
    # images of two labels that are encoded anew cannot be told apart: no mark rather than one on another
    convert(place, tmp_path / "jpeg.well", "jpeg", episodes=slice(2, 5), workers=0)
    assert marks_of(str(tmp_path / "jpeg.well")) == [None, None, None]


@pytest.mark.parametrize("kind", ["rlds", "webdataset-episodes"])
def test_marks_travel_with_metadata_of_what_is_written_of_a_store(tmp_path: Path, home: Path, kind: str) -> None:
    store = make(tmp_path / "s.well")
    store.mark_episodes([1, 4], "good", note="n")
    if kind == "rlds":
        write_rlds(store, tmp_path / "d", name="arm", workers=1)
    else:
        write_webdataset(store, tmp_path / "d", samples="episodes", workers=1)
    place = f"{kind}://{tmp_path / 'd'}"
    with stepwell.open(place, mode="r") as other:
        facts = [episode.metadata for episode in other]
        # RLDS has the same metadata for every episode
        assert [(each.get("mark") or None, each.get("note") or None) for each in facts] == [
            ("good", "n") if index in (1, 4) else (None, None) for index in range(NUM)
        ]
        other.mark_episodes(1, "bad")
    assert marks_of(place)[1] == "bad"
