"""What notebooks show of batches and loaders; the figure of a batch; errors that name what there is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Batch, Field, Image, Loader, ReplayLoader, Table, Text


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    store = stepwell.create(
        tmp_path / "arm.well", {"obs.camera": Image((12, 16, 3)), "state": Array(2), "task": Text(), "reward": Array()}
    )
    with store.writer() as writer:
        columns: dict[str, Any] = {
            "obs.camera": (np.arange(5 * 12 * 16 * 3) % 256).astype(np.uint8).reshape(5, 12, 16, 3),
            "state": np.arange(10, dtype=np.float32).reshape(5, 2),
            "task": ["<b>push</b>"] * 5,
            "reward": np.arange(5, dtype=np.float32),
        }
        writer.add_episode(columns)
    store.refresh()
    return store


FIELDS = {"obs.camera": [-1, 0], "state": range(-2, 2), "task": "task", "reward": "reward"}


def test_a_batch_shows_shapes_padding_numbers_and_frames(store: stepwell.Store) -> None:
    html = next(iter(Loader(store, FIELDS, batch_size=3)))._repr_html_()
    assert "[3, 2, 12, 16, 3]" in html
    # of state steps -2 and -1 of row 0, and -2 of row 1: 3 of 12; of the camera step -1 of row 0: 1 of 6
    assert "25% of steps" in html
    assert "17% of steps" in html
    assert html.count("<img ") == 6
    assert "row 0, 0 pad" in html
    assert "&lt;b&gt;push&lt;/b&gt;" in html
    assert "_is_pad" not in html


def test_a_loader_shows_its_fields_and_what_was_chosen(store: stepwell.Store) -> None:
    fields = {**FIELDS, "image": Field("obs.camera", transform=np.negative)}
    html = Loader(store, fields, batch_size=3, drop_last=True)._repr_html_()
    assert "(-2, -1, 0, 1)" in html
    assert "negative" in html
    assert "drop_last" in html
    assert "page_cache" not in html


def test_a_table_is_shown(store: stepwell.Store) -> None:
    assert "5 of 1,000,000 items" in Table(store)._repr_html_()


@pytest.mark.parametrize("batch", [Batch({}), Batch({"a": 1, "b": None, "c": [1], "d": np.zeros((0, 3))})])
def test_odd_batches_are_shown(batch: Batch) -> None:
    assert "cannot be shown" not in batch._repr_html_()


def test_a_key_that_is_not_there_is_an_error_that_names_those_that_are(store: stepwell.Store) -> None:
    batch = next(iter(Loader(store)))
    with pytest.raises(KeyError, match=r"no key 'act' in this batch. There are: obs.camera, state, task, reward."):
        batch["act"]
    assert batch.get("act") is None
    assert "act" not in batch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shuffle": True}, r'no argument .shuffle.\. Here it is order="random"'),
        ({"num_workers": 4}, "Here it is threads"),
        ({"batchsize": 4}, "There are: .*fields, batch_size, "),
    ],
)
def test_arguments_of_other_loaders_are_translated(store: stepwell.Store, options: Any, words: str) -> None:
    for make in (Loader, ReplayLoader):
        with pytest.raises(TypeError, match=words):
            make(store, **options)


def test_signatures_are_those_of_the_arguments() -> None:
    import inspect

    assert list(inspect.signature(Loader).parameters)[:3] == ["view", "fields", "batch_size"]
    assert list(inspect.signature(ReplayLoader).parameters)[:3] == ["sources", "fields", "batch_size"]


# the figure


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib").use("agg")


def titles(figure: Any) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


@pytest.mark.usefixtures("_matplotlib")
def test_a_batch_is_drawn_a_window_a_column_with_its_padding(store: stepwell.Store) -> None:
    batch = next(iter(Loader(store, FIELDS, batch_size=8, pad=True)))
    figure = batch.show(rows=3)
    assert titles(figure) == ["obs.camera", "state", "task", "reward"]
    camera, *_, state = figure.axes[:4]
    assert np.array_equal(camera.images[0].get_array(), batch["obs.camera"][0, 0])
    # a window of row 0: its first frame is padding, pale and hatched
    assert [image.get_alpha() for image in camera.images] == [0.3, 1.0]
    assert [patch.get_hatch() for patch in camera.patches] == ["//"]
    assert np.array_equal(state.lines[1].get_ydata(), batch["state"][0, :, 1])
    assert len(state.patches) == batch["state_is_pad"][0].sum() == 2
    assert [axes.get_title(loc="right") for axes in figure.axes[:3]] == [f"row {i}, anchor {i}" for i in range(3)]
    figure.canvas.draw()
    assert "repeated to fill" in batch.show(["reward"], rows=8).axes[7].get_title(loc="right")


@pytest.mark.usefixtures("_matplotlib")
def test_keys_of_the_figure_are_chosen(store: stepwell.Store) -> None:
    batch = next(iter(Loader(store, FIELDS, batch_size=2, nested=True)))
    assert titles(batch.show(["obs.camera"])) == ["obs.camera"]
    with pytest.raises(stepwell.FeatureNotFoundError, match=r"no key 'camera' in this batch. There are: obs.camera, "):
        batch.show(["camera"])


@pytest.mark.usefixtures("_matplotlib")
def test_tensors_with_channels_first_are_drawn() -> None:
    torch = pytest.importorskip("torch")
    pixels = torch.linspace(0, 1, 2 * 3 * 20 * 24).reshape(2, 3, 20, 24)
    figure = Batch({"image": pixels, "half": torch.ones(2, 3, dtype=torch.bfloat16)}).show()
    assert titles(figure) == ["image", "half"]
    assert figure.axes[0].images[0].get_array().shape == (20, 24, 3)
    figure.canvas.draw()


@pytest.mark.usefixtures("_matplotlib")
def test_small_float_arrays_are_numbers_and_not_images() -> None:
    figure = Batch({"points": np.zeros((2, 10, 8, 3), np.float32)}).show()
    assert not figure.axes[0].images
    figure.canvas.draw()
