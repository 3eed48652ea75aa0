"""Scripts as FFCV's users have them, with nothing changed but the imports."""

import gc
import io
import multiprocessing
import tarfile

import numpy as np
import pytest
import sample_sets as sets
from spec_reader import SpecFile

from stepwell.errors import FormatError, SchemaError, StepError, WorkerError
from stepwell.ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from stepwell.ffcv.writer import DatasetWriter

PAGE = 1 << 21


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    yield
    assert multiprocessing.active_children() == []


def fields():
    return {
        "image": RGBImageField(),
        "int": IntField(),
        "float": FloatField(),
        "bytes": BytesField(),
        "json": JSONField(),
        "array": NDArrayField(np.dtype("float32"), (4, 3)),
    }


class LinearRegression:
    def __init__(self, number, width):
        rng = np.random.default_rng(0)
        self.x, self.y = rng.normal(size=(number, width)), rng.normal(size=number)

    def __getitem__(self, index):
        return self.x[index].astype("float32"), self.y[index]

    def __len__(self):
        return len(self.x)


def test_the_first_example_of_ffcv_s_documentation_is_written(tmp_path):
    dataset = LinearRegression(100, 6)
    writer = DatasetWriter(
        str(tmp_path / "linear.beton"),
        {"covariate": NDArrayField(shape=(6,), dtype=np.dtype("float32")), "label": FloatField()},
        num_workers=16,
    )
    writer.from_indexed_dataset(dataset)
    file = SpecFile(tmp_path / "linear.beton")
    file.check()
    assert file.page_size == 8 << 20
    for index in range(100):
        covariate, label = dataset[index]
        assert np.array_equal(file.sample(index)["covariate"], covariate) and file.sample(index)["label"] == label


def test_a_dataset_that_cannot_be_pickled_is_written_by_several_processes(tmp_path):
    class Local(sets.Samples):
        hook = staticmethod(lambda: None)

    writer = DatasetWriter(tmp_path / "a.beton", fields(), page_size=PAGE, num_workers=3)
    writer.from_indexed_dataset(Local(50), chunksize=7)
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    assert [file.sample(i)["int"] for i in range(50)] == list(range(-3, 47))


def test_a_file_that_is_there_is_replaced_as_ffcv_does(tmp_path):
    for number in (5, 3):
        DatasetWriter(tmp_path / "a.beton", fields(), PAGE, 1).from_indexed_dataset(sets.Samples(number))
    assert SpecFile(tmp_path / "a.beton").number == 3


def test_indices_choose_and_are_shuffled_as_numpy_s_generator_says(tmp_path):
    chosen = np.array([5, 9, 2, 40, 7, 1])
    kept = chosen.copy()
    for name, options in (("plain", {}), ("one", {"shuffle_indices": True}), ("two", {"shuffle_indices": True})):
        np.random.seed(3)
        writer = DatasetWriter(tmp_path / f"{name}.beton", fields(), PAGE, 1)
        writer.from_indexed_dataset(sets.Samples(), indices=chosen, **options)
    written = {
        name: [SpecFile(tmp_path / f"{name}.beton").sample(i)["int"] + 3 for i in range(6)] for name in ("plain", "one")
    }
    assert written["plain"] == kept.tolist()
    np.random.seed(3)
    np.random.shuffle(kept)
    assert written["one"] == kept.tolist()
    assert np.array_equal(chosen, [5, 9, 2, 40, 7, 1])
    assert (tmp_path / "one.beton").read_bytes() == (tmp_path / "two.beton").read_bytes()


def test_a_worker_that_raises_stops_the_run_with_its_sample_and_traceback(tmp_path):
    writer = DatasetWriter(tmp_path / "a.beton", fields(), PAGE, 2)
    with pytest.raises(WorkerError, match=r"sample 33 could not be written: ZeroDivisionError(.|\n)*in strange"):
        writer.from_indexed_dataset(sets.RaisingSamples(at=33), chunksize=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["größe", "observation.state", ""])
def test_names_that_ffcv_would_cut_are_refused(tmp_path, name):
    with pytest.raises(SchemaError, match="field name"):
        DatasetWriter(tmp_path / "a.beton", {name: IntField()})


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(FormatError, match="page_size"):
        DatasetWriter(tmp_path / "a.beton", fields(), page_size=(1 << 21) + 1)
    with pytest.raises(SchemaError, match=r"field 'x' is a builtins\.object"):
        DatasetWriter(tmp_path / "a.beton", {"x": object()})
    writer = DatasetWriter(tmp_path / "a.beton", fields(), PAGE, 1)
    with pytest.raises(StepError, match="no samples"):
        writer.from_indexed_dataset([])
    with pytest.raises(StepError, match="chunksize=0"):
        writer.from_indexed_dataset(sets.Samples(), chunksize=0)
    with pytest.raises(StepError, match="indices of dtype float64"):
        writer.from_indexed_dataset(sets.Samples(), indices=[0.5])
    assert list(tmp_path.iterdir()) == []


def write_shards(folder, counts):
    """Write tar files as WebDataset has them: of sample i, ``i.cls`` and ``i.bin``."""
    paths, number = [], 0
    for shard, count in enumerate(counts):
        paths.append(str(folder / f"shard-{shard}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for _ in range(count):
                for name, data in ((f"{number:04d}.cls", str(number).encode()), (f"{number:04d}.bin", bytes([number]))):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
                number += 1
    return paths


def classified(dataset):
    return dataset.decode().to_tuple("bin", "cls")


@pytest.fixture
def webdataset():
    yield pytest.importorskip("webdataset")
    # it leaves files to the collector, which would tell of them in a later test
    gc.collect()


# webdataset's own: it does not close the files that it opens
LEFT_OPEN = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@LEFT_OPEN
@pytest.mark.usefixtures("webdataset")
@pytest.mark.parametrize("workers", [1, 3])
def test_shards_are_written_a_short_last_one_too(tmp_path, workers):
    shards = write_shards(tmp_path, [7, 7, 2])
    writer = DatasetWriter(tmp_path / "a.beton", {"data": BytesField(), "label": IntField()}, PAGE, workers)
    writer.from_webdataset(shards, classified)
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    assert [file.sample(i) for i in range(file.number)] == [{"data": bytes([i]), "label": i} for i in range(16)]


@LEFT_OPEN
@pytest.mark.usefixtures("webdataset")
def test_a_pipeline_that_raises_names_its_shard(tmp_path):
    writer = DatasetWriter(tmp_path / "a.beton", {"label": IntField()}, PAGE, 1)
    with pytest.raises(WorkerError, match=r"shard-0\.tar cannot be counted"):
        writer.from_webdataset(write_shards(tmp_path, [3]), lambda dataset: dataset.map(lambda _: 1 // 0))
    with pytest.raises(StepError, match="no samples"):
        writer.from_webdataset([], classified)
