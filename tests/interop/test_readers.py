"""Minari's, Hugging Face's and zarr's data sets that the real ones wrote: all values as they read them themselves."""

import pickle

import numpy as np
import pytest
from formats_process import PYTHON, REASON, FormatsProcess

import stepwell
from stepwell import convert
from stepwell.formats import find_reader

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=REASON)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    with FormatsProcess("readers_child.py", tmp_path_factory.mktemp("log") / "errors") as process:
        yield process


def both(source, tmp_path):
    """Yield a data set as an imported store and as one in place."""
    convert(source, tmp_path / "a.well", workers=1)
    yield stepwell.open(tmp_path / "a.well")
    yield stepwell.open(f"{find_reader(source).name}://{source}", cache=tmp_path / "cache")


def assert_same(found, wanted, where):
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.shape, found.dtype.kind) == (wanted.shape, wanted.dtype.kind), where
    assert np.array_equal(found, wanted), where


@pytest.mark.parametrize("jpeg", [True, False])
@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_minari_is_read_as_minari_reads_it(theirs, tmp_path, data_format, jpeg):
    path = theirs.ask("minari", root=str(tmp_path / "x"), out=str(tmp_path / "v"), data_format=data_format, jpeg=jpeg)
    wanted = pickle.loads((tmp_path / "v").read_bytes())
    for store in both(path["path"], tmp_path):
        assert len(store) == len(wanted) == 3
        for episode, columns in zip(store, wanted, strict=True):
            assert set(store.schema) == set(columns)
            for name, rows in columns.items():
                assert_same(episode[name], rows, name)
        assert [(episode.terminated, episode.truncated) for episode in store] == [
            (True, False),
            (False, True),
            (False, True),
        ]
        assert [episode.metadata["seed"] for episode in store] == [0, 1, 2]


@pytest.fixture(scope="module")
def saved(theirs, tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets")
    theirs.ask("datasets", root=str(root), out=str(root / "values"))
    return root


@pytest.mark.parametrize(
    ("place", "values", "lengths"),
    [
        ("saved", "all", {3: 9, 0: 9, 7: 5}),
        ("dict", "all", {3: 9, 0: 9, 7: 5}),
        ("parquet", "all", {3: 9, 0: 9, 7: 5}),
        ("sorted", "sorted", {0: 9, 3: 9, 7: 5}),
    ],
)
def test_datasets_are_read_as_datasets_reads_them(saved, tmp_path, place, values, lengths):
    wanted = pickle.loads((saved / f"values-{values}").read_bytes())
    for store in both(saved / place, tmp_path):
        assert {episode.metadata["episode"]: len(episode["label"]) for episode in store} == lengths
        assert set(store.schema) == set(wanted[0])
        for name in store.schema:
            rows = [row for episode in store for row in episode[name]]
            assert len(rows) == len(wanted)
            for step, row in enumerate(rows):
                assert np.array_equal(row, wanted[step][name]), (name, step)
        assert store.metadata["huggingface"]["labels"] == {"label": ["a", "b"]}


def test_a_replay_buffer_that_zarr_compressed_is_read(theirs, tmp_path):
    theirs.ask("replay", root=str(tmp_path / "p.zarr"))
    wanted = pickle.loads((tmp_path / "p.zarr.values").read_bytes())
    for store in both(tmp_path / "p.zarr", tmp_path):
        assert [len(episode["action"]) for episode in store] == [13, 1, 16, 20]
        for name in ("img", "action"):
            assert np.array_equal(np.concatenate([episode[name] for episode in store]), wanted[f"data/{name}"])
