"""Stores as data sets of Ray Data and back: no episode is torn, whatever blocks Ray makes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stepwell[ray]'")
pytest.importorskip("pandas", reason="Ray Data needs pandas")

import stepwell
from stepwell.errors import FormatError, StepwellError, StoreExistsError

# Ray Data asks itself for options that it has deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NUM_EPISODES = 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    """Episodes of different lengths, of several segments, with images, texts and final rows."""
    path = tmp_path_factory.mktemp("data") / "walk.well"
    schema = {
        "number": stepwell.Array((), "int64"),
        "state": stepwell.Array(3, final=True),
        "image": stepwell.Image((8, 8, 3), codec="png"),
        "task": stepwell.Text(),
    }
    with stepwell.create(path, schema, segment_bytes=20_000) as made, made.writer() as writer:
        for index in range(NUM_EPISODES):
            length = index % 7 + 1
            writer.add_episode(
                {
                    "number": np.arange(length) + 100 * index,
                    "state": np.full((length + 1, 3), index, np.float32),
                    "image": np.full((length, 8, 8, 3), index, np.uint8),
                    "task": [f"walk {index}"] * length,
                },
                terminated=index % 2 == 0,
                seed=index,
            )
    return stepwell.open(path, mode="r")


def test_episodes_go_through_ray_whole(tmp_path: Path, local_ray: Any, store: stepwell.Store) -> None:
    from stepwell.ray import WellDatasink, read

    def renamed(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "number": [values + 1 for values in batch["number"]]}

    dataset = read(store).map_batches(renamed, batch_size=11).repartition(7)
    assert dataset.count() == NUM_EPISODES
    dataset.write_datasink(WellDatasink(tmp_path / "copy.well", store.schema))
    copy = stepwell.open(tmp_path / "copy.well", mode="r")
    assert len(copy) == NUM_EPISODES
    found = {episode.metadata["seed"]: episode for episode in copy}
    for index in range(NUM_EPISODES):
        episode, before = found[index], store[index]
        assert episode["number"].tolist() == (before["number"] + 1).tolist()
        assert (episode.length, episode.terminated) == (before.length, before.terminated)
        np.testing.assert_array_equal(episode["state"], before["state"])
        np.testing.assert_array_equal(episode["image"], before["image"])
        assert list(episode["task"]) == list(before["task"])


def test_steps_are_read_once_and_cannot_be_written_as_episodes(
    tmp_path: Path, local_ray: Any, store: stepwell.Store
) -> None:
    from stepwell.ray import WellDatasink, read

    steps = read(store, "step", columns=["number", "state"], episodes=slice(10, 50))
    rows = steps.to_pandas()
    assert sorted(rows["number"]) == [n for index in range(10, 50) for n in store[index]["number"].tolist()]
    assert set(rows.columns) == {"number", "state", "episode", "step"}
    with pytest.raises(Exception, match="is no episode"):
        steps.write_datasink(WellDatasink(tmp_path / "torn.well"))
    assert not (tmp_path / "torn.well").exists()


def test_what_is_at_the_path_already_stays(tmp_path: Path, local_ray: Any, store: stepwell.Store) -> None:
    from stepwell.ray import WellDatasink, read

    sink = WellDatasink(tmp_path / "copy.well", store.schema)
    dataset = read(store, episodes=slice(0, 10))
    dataset.write_datasink(sink)
    for again in (sink, WellDatasink(tmp_path / "copy.well", store.schema)):
        with pytest.raises(StoreExistsError, match="is there already"):
            dataset.write_datasink(again)
    assert len(stepwell.open(tmp_path / "copy.well", mode="r")) == 10


def test_relative_paths_are_those_of_the_driver(
    tmp_path: Path, local_ray: Any, store: stepwell.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.ray import WellDatasink, read

    (tmp_path / "walk.well").symlink_to(store.path)
    # Ray's workers have the working directory in which it was started
    monkeypatch.chdir(tmp_path)
    read("walk.well", episodes=slice(0, 10)).write_datasink(WellDatasink("copy.well", store.schema))
    assert len(stepwell.open(tmp_path / "copy.well", mode="r")) == 10


def test_an_address_is_no_place_to_write_to(tmp_path: Path, local_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.ray import WellDatasink, start_replay

    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match="is an address"):
        WellDatasink("s3://bucket/copy.well")
    with pytest.raises(FormatError, match="is an address"):
        start_replay({"replay": {}}, path="s3://bucket/replay")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("tasks", [1, 3, 4])
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_windows_are_those_of_a_loader_each_once(local_ray: Any, store: stepwell.Store, order: str, tasks: int) -> None:
    from stepwell.ray import read

    fields = {"number": [-1, 0], "state": "state"}
    rows = read(store, "window", fields=fields, order=order, seed=3, batch_size=7, override_num_blocks=tasks)
    found = sorted(tuple(row["number"].tolist()) for row in rows.iter_rows())
    wanted = []
    for batch in stepwell.Loader(store, fields, batch_size=16, order="sequential"):
        wanted += [tuple(row) for row in batch["number"].tolist()]
    assert found == sorted(wanted)


@pytest.mark.parametrize("unit", ["episode", "step", "window"])
def test_no_episodes_are_no_rows(local_ray: Any, store: stepwell.Store, unit: Any) -> None:
    from stepwell.ray import read

    assert read(store, unit, episodes=[]).count() == 0


def test_a_data_set_without_rows_is_a_store_without_episodes(
    local_ray: Any, store: stepwell.Store, tmp_path: Path
) -> None:
    from stepwell.ray import WellDatasink, read

    read(store, "episode", episodes=[]).write_datasink(WellDatasink(tmp_path / "nothing.well", store.schema))
    with stepwell.open(tmp_path / "nothing.well", mode="r") as found:
        assert len(found) == 0 and found.schema == store.schema


def test_what_cannot_be_is_refused(local_ray: Any, store: stepwell.Store) -> None:
    from stepwell.ray import read

    with pytest.raises(StepwellError, match="unit='row'"):
        read(store, "row")  # type: ignore[arg-type]
    with pytest.raises(StepwellError, match="window"):
        read(store, "step", order="random")
