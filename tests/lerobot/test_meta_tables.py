"""Info, episodes and tasks as LeRobot's code asks for them."""

from __future__ import annotations

import copy
import pickle

import pytest

from stepwell.errors import FeatureNotFoundError, MissingDependencyError
from stepwell.lerobot.meta_tables import EpisodeRows, InfoDict, TaskRows


def test_info_is_asked_for_by_key_and_by_attribute() -> None:
    info = InfoDict(fps=10, features={"action": {"dtype": "float32", "shape": (2,)}}, total_frames=3)
    info.total_frames += 4
    assert (info["total_frames"], info.fps, info.get("robot_type")) == (7, 10, None)
    assert (info.chunks_size, info.splits, info.tools, info.robot_type) == (1000, {}, None, None)
    with pytest.raises(AttributeError, match=r"'speed'.*fps"):
        _ = info.speed


def test_info_is_copied_and_written_as_json_has_it() -> None:
    info = InfoDict(features={"action": {"shape": (2,)}})
    assert info.to_dict() == {"features": {"action": {"shape": [2]}}}
    assert info.features["action"]["shape"] == (2,)
    for other in (copy.deepcopy(info), pickle.loads(pickle.dumps(info))):
        assert type(other) is InfoDict
        other.features["action"]["shape"] = (3,)
    assert info.features["action"]["shape"] == (2,)


def test_defaults_are_not_shared() -> None:
    InfoDict().splits["train"] = "0:1"
    assert InfoDict().splits == {}


def test_tables_are_those_of_pandas_where_it_is_there() -> None:
    pandas = pytest.importorskip("pandas")
    tasks = TaskRows(["pick", "place"])
    assert tasks.reset_index().to_dict("list") == {"task": ["pick", "place"], "task_index": [0, 1]}
    changed = tasks.copy()
    changed.loc["drop"] = 2
    assert (len(changed), len(tasks)) == (3, 2)
    assert isinstance(EpisodeRows({"length": [5, 7]}).to_pandas(), pandas.DataFrame)


def test_episodes_have_the_verbs_of_datasets_where_it_is_there() -> None:
    pytest.importorskip("datasets")
    episodes = EpisodeRows({"length": [5, 7], "tasks": [["a"], ["b", "c"]]})
    assert list(episodes.features) == ["length", "tasks"]
    assert episodes.with_format("numpy")[1]["length"] == 7
    assert episodes.filter(lambda row: row["length"] > 5)["tasks"][0] == ["b", "c"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        TaskRows(["pick"]).to_pandas()


def test_what_neither_has_is_an_attribute_error() -> None:
    for table in (TaskRows(["pick"]), EpisodeRows({"length": [1]})):
        assert not hasattr(table, "__array_interface__")
        assert copy.copy(table)._columns if isinstance(table, EpisodeRows) else copy.copy(table).index
    with pytest.raises(FeatureNotFoundError):
        EpisodeRows({"length": [1]})["lenght"]
