"""What notebooks show of stores, views, episodes and their statistics; their plots."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Image, Text, View
from stepwell.display.html import MAX_BYTES
from stepwell.store.statistics_table import StatisticsTable

SCRIPT = "<script>alert(1)</script>"


def record(path: Path, num_episodes: int = 3, codec: str = "raw") -> stepwell.Store:
    features = {
        "camera": Image((12, 16, 3), codec=codec),
        "state": Array(2, names=["left & right", "grip"]),
        "task": Text(),
        "pressure": Array(100),
    }
    store = stepwell.create(path, features, fps=10)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for number in range(num_episodes):
            length = 4 + number
            columns: dict[str, Any] = {
                "camera": rng.integers(0, 256, (length, 12, 16, 3), dtype=np.uint8),
                "state": rng.random((length, 2), np.float32),
                "task": [SCRIPT] * length,
                "pressure": rng.random((length, 100), np.float32),
            }
            writer.add_episode(columns, terminated=number == 1, note=SCRIPT, seed=number)
    store.refresh()
    return store


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    return record(tmp_path / "walk.well")


def test_a_store_shows_its_features_and_a_frame_of_each_episode(store: stepwell.Store) -> None:
    html = store._repr_html_()
    assert all(f">{name}</td>" in html for name in ("camera", "state", "task", "pressure"))
    assert html.count("<img ") == 3
    assert "episode 2" in html
    assert "min 4  median 5  max 6" in html


def test_an_episode_shows_metadata_frames_and_lines(store: stepwell.Store) -> None:
    html = store[1]._repr_html_()
    assert "terminated" in html
    assert html.count("<img ") == 5
    assert html.count("<svg ") == 2
    assert "left &amp; right, grip" in html
    # text of files is no code
    assert SCRIPT not in html
    assert html.count("&lt;script&gt;") == 2


def test_a_view_shows_its_episodes_as_they_were(store: stepwell.Store) -> None:
    view = View(store).select(where={"seed": 2})
    store.delete_episodes([0, 1])
    store.refresh()
    html = view._repr_html_()
    assert "<td style='padding:2px 8px;text-align:left'>2</td>" in html
    assert "&lt;View of walk.well  1 episode  6 steps&gt;" in html
    assert html.count("<img ") == 1


def test_a_view_of_several_stores_says_which(store: stepwell.Store, tmp_path: Path) -> None:
    html = View([store, record(tmp_path / "run.well", 40)])._repr_html_()
    assert "10 of 43, evenly spaced" in html
    assert "run.well 39" in html


@pytest.mark.parametrize("features", [None, {"state": Array(2)}])
def test_what_is_empty_is_shown(tmp_path: Path, features: Any) -> None:
    store = stepwell.create(tmp_path / "empty.well", features)
    for shown in (store, View(store), store.statistics()):
        assert "cannot be shown" not in shown._repr_html_()
    assert "no episodes" in store._repr_html_()


def test_damaged_frames_are_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    store = record(tmp_path / "walk.well", codec="png")
    (segment,) = store.segments
    path = segment.path / "camera.bin"
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    path.write_bytes(bytes(data))
    store = stepwell.open(store.path, mode="r")
    for html in (store._repr_html_(), store[0]._repr_html_()):
        assert "DecodeError" in html
        assert "cannot be shown" not in html
    assert "<svg " in store[0]._repr_html_()
    assert "<img " in store._repr_html_()


def test_a_store_that_was_removed_is_still_shown(store: stepwell.Store) -> None:
    import shutil

    episode, view = store[0], View(store)
    shutil.rmtree(store.path)
    for shown in (store, episode, view):
        assert "walk.well" in shown._repr_html_()
    assert "SegmentGoneError" in episode._repr_html_()


def test_many_features_and_much_metadata_stay_small(tmp_path: Path) -> None:
    features = {f"feature{number}": Array(20) for number in range(150)}
    features |= {f"camera{number}": Image((200, 300, 3)) for number in range(6)}
    store = stepwell.create(tmp_path / "wide.well", features)
    noise = np.random.default_rng(0).integers(0, 256, (3, 200, 300, 3), dtype=np.uint8)
    columns: dict[str, Any] = {
        name: noise if "camera" in name else np.eye(3, 20, dtype=np.float32) for name in features
    }
    with store.writer() as writer:
        writer.add_episode(columns, **{f"key{number}": "<ü>" * 1000 for number in range(300)})
    store.refresh()
    for shown in (store, store[0], View(store), store.statistics()):
        html = shown._repr_html_()
        assert "cannot be shown" not in html
        assert len(html.encode()) <= MAX_BYTES


def test_a_camera_on_another_machine_is_not_fetched(tmp_path: Path) -> None:
    from stepwell.store.notebook import _strip

    feature = Image((12, 16, 3), codec="video-file", files="https://example.invalid/{file}.mp4")
    strip = _strip("camera", feature, [(None, 0, "step 0")])  # type: ignore[list-item]
    assert strip.frames == []
    assert "another machine" in strip.label


# statistics


def test_statistics_print_their_numbers(store: stepwell.Store) -> None:
    found = store.statistics(names=["state"])
    lines = str(found).splitlines()
    quantiles = ["q01", "q10", "q50", "q90", "q99"]
    assert lines[0].split() == ["feature", "dim", "mean", "std", "min", "max", *quantiles, "count"]
    assert [line.split("  ")[0] for line in lines[1:]] == ["state", ""]
    assert [line[9:].split()[0] for line in lines[1:]] == ["left", "grip"]
    numbers = [float(each) for each in lines[2].split()[1:]]
    column = np.concatenate([episode["state"][:, 1] for episode in store])
    expected = [column.mean(), column.std(), column.min(), column.max()]
    expected += [*np.quantile(column, [0.01, 0.1, 0.5, 0.9, 0.99]), 15]
    assert np.allclose(numbers, expected, rtol=1e-3)
    assert repr(found["state"]).startswith("<FeatureStatistics (2,), 15 values>\n")
    assert lines[2].split()[1:] == repr(found["state"]).splitlines()[3].split()[1:]


def test_printed_means_lie_between_the_least_and_the_greatest(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ticks.well", {"tick": Array(), "count": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"tick": np.full(9, 99_999, np.float32), "count": np.full(9, 2**60 + 1)})
    store.refresh()
    tick, count = str(store.statistics()).splitlines()[1:]
    assert tick.split() == ["tick", "99,999", "0", *["99,999"] * 7, "9"]
    assert f"{2**60 + 1:,}" in count


def test_statistics_of_large_features_are_cut_and_those_without_numbers_say_so(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "large.well", {"large": Array(100), "nothing": Array()})
    with store.writer() as writer:
        writer.add_episode({"large": np.zeros((2, 100), np.float32), "nothing": np.array([np.nan, np.inf], np.float32)})
    store.refresh()
    text = str(store.statistics())
    assert "84 more" in text
    head, *_, nothing = text.splitlines()
    assert (head.split()[-2:], nothing.split()[-3:]) == (["nan", "inf"], ["0", "1", "1"])
    assert "nothing" in store.statistics()._repr_html_()


def test_statistics_are_a_dict_that_pickles(store: stepwell.Store) -> None:
    found = View(store).statistics()
    assert isinstance(found, dict)
    assert list(found) == ["camera", "state", "pressure"]
    copy = pickle.loads(pickle.dumps(found))
    assert isinstance(copy, StatisticsTable)
    assert str(copy) == str(found)
    assert copy.names == {"state": ("left & right", "grip")}


# plots


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib").use("agg")


@pytest.mark.usefixtures("_matplotlib")
def test_the_plot_of_an_episode_has_strips_curves_and_their_names(store: stepwell.Store) -> None:
    figure = store[2].plot(frames=3)
    camera, state, pressure = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["camera", "state", "pressure"]
    assert [label.get_text() for label in camera.get_xticklabels()] == ["0.0 s", "0.2 s", "0.5 s"]
    assert np.array_equal(camera.images[1].get_array(), store[2]["camera"][2])
    assert [line.get_label() for line in state.lines] == ["left & right", "grip"]
    assert np.allclose(state.lines[1].get_ydata(), store[2]["state"][:, 1])
    assert np.allclose(state.lines[1].get_xdata(), np.arange(6) / 10)
    assert state.get_xlabel() == "seconds"
    assert pressure.images[0].get_array().shape == (100, 6)
    figure.canvas.draw()


@pytest.mark.usefixtures("_matplotlib")
def test_features_of_a_plot_are_chosen_and_what_cannot_be_drawn_is_refused(store: stepwell.Store) -> None:
    assert len(store[0].plot(["state"]).axes) == 1
    with pytest.raises(stepwell.FeatureNotFoundError, match="no feature 'stat'"):
        store[0].plot(["stat"])
    with pytest.raises(stepwell.SchemaError, match=r"'task' .*drawn\. Those that can: camera, state, pressure"):
        store[0].plot(["task"])


@pytest.mark.usefixtures("_matplotlib")
def test_a_damaged_frame_of_a_plot_is_a_box_that_says_so(tmp_path: Path) -> None:
    store = record(tmp_path / "walk.well", codec="png")
    (segment,) = store.segments
    path = segment.path / "camera.bin"
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    figure = stepwell.open(store.path, mode="r")[0].plot(["camera"])
    assert "DecodeError" in " ".join(text.get_text() for text in figure.axes[0].texts)
    figure.canvas.draw()


@pytest.mark.usefixtures("_matplotlib")
def test_statistics_are_boxes_of_their_quantiles(store: stepwell.Store) -> None:
    found = store.statistics()
    figure = found.plot(["state", "camera"])
    state, camera = figure.axes
    assert [label.get_text() for label in state.get_xticklabels()] == ["left & right", "grip"]
    assert [label.get_text() for label in camera.get_xticklabels()] == ["0", "1", "2"]
    drawn = np.concatenate([np.ravel(line.get_ydata()) for line in state.lines])
    for expected in (found["state"].mean, found["state"].min, found["state"].max, found["state"].quantile(0.25)):
        assert all(np.isclose(drawn, value).any() for value in expected)
    with pytest.raises(stepwell.FeatureNotFoundError, match="'stat'"):
        found.plot(["stat"])
    figure.canvas.draw()


@pytest.mark.usefixtures("_matplotlib")
def test_scripts_keep_no_figures(store: stepwell.Store) -> None:
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    store[0].plot(["state"])
    assert pyplot.get_fignums() == before


def test_without_matplotlib_the_extra_is_named(store: stepwell.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for plot in (store[0].plot, store.statistics().plot):
        with pytest.raises(stepwell.MissingDependencyError, match=r"matplotlib is not installed.*\[plot\]"):
            plot()
