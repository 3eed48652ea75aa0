"""Scripts as FFCV's users have them, with nothing changed but the imports."""

import gc
import io
import multiprocessing
import tarfile

import numpy as np
import pytest
import sample_sets as sets
from spec_reader import SpecFile

from stepwell.errors import DecodeError, FormatError, SchemaError, StepError, WorkerError
from stepwell.ffcv.fields import BytesField, Field, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from stepwell.ffcv.reader import Reader
from stepwell.ffcv.writer import DatasetWriter

PAGE = 1 << 21
SMALL_PAGE = 1 << 16


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


class Scaled(NDArrayField):
    """Numbers from 0 to 1 as bytes."""

    def encode(self, destination, field, malloc):
        return super().encode(destination, np.asarray(field * 255).astype("u1"), malloc)


class Padded(NDArrayField):
    """Texts of one length, as in FFCV's own tests of fields of one's own."""

    def __init__(self, max_len):
        super().__init__(np.dtype("u1"), (max_len,))

    def encode(self, destination, field, malloc):
        data = np.zeros(self.shape, "u1")
        data[: len(field)] = np.frombuffer(field.encode(), "u1")
        return super().encode(destination, data, malloc)


class Doubled(IntField):
    def encode(self, destination, field, malloc):
        super().encode(destination, 2 * field, malloc)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_field_of_one_s_own_may_make_other_values(tmp_path, workers):
    own = {"x": Scaled(np.dtype("u1"), (4,)), "text": Padded(8), "n": Doubled()}
    samples = [(np.full(4, number / 4), "ab" * number, number) for number in range(4)]
    DatasetWriter(str(tmp_path / "a.beton"), own, num_workers=workers).from_indexed_dataset(samples)
    file = SpecFile(tmp_path / "a.beton", {"x": 4, "text": 4, "n": 1})
    file.check()
    for number in range(4):
        found = file.sample(number)
        assert found["x"].tolist() == [number * 255 // 4] * 4 and found["n"] == 2 * number
        assert bytes(found["text"]).rstrip(b"\0").decode() == "ab" * number


class Named(IntField):
    """Another class that changes no bytes: a built-in type."""

    def __init__(self, called):
        self.called = called


def test_a_field_that_writes_other_bytes_is_of_a_custom_type(tmp_path):
    path, own = tmp_path / "a.beton", {"n": Named("n"), "text": Padded(8), "x": BytesField()}
    DatasetWriter(path, own, num_workers=1).from_indexed_dataset([(1, "a", b"x")])
    with pytest.raises(ValueError, match=r"custom_fields=\{'text': its class\}"):
        Reader(path)
    assert Reader(path, {"text": Padded}).field_descriptors["type_id"].tolist() == [1, 255, 3]


def test_images_beside_a_field_of_one_s_own_are_drawn_one_by_one(tmp_path):
    pytest.importorskip("simplejpeg")
    fields = {"image": RGBImageField("proportion"), "n": IntField()}
    samples = [(np.full((4, 4, 3), i, "u1"), i) for i in range(40)]
    modes = []
    for name, others in (("a", {}), ("b", {"n": Doubled()})):
        path = tmp_path / f"{name}.beton"
        DatasetWriter(path, {**fields, **others}, num_workers=1).from_indexed_dataset(samples)
        modes.append(Reader(path, {"n": Doubled} if others else {}).rows_of("image")["mode"].tolist())
    assert modes[0] == modes[1] and set(modes[0]) == {0, 1}


def test_a_field_that_says_not_enough_is_refused_by_name(tmp_path):
    own = type("Own", (Field,), {"encode": lambda self, destination, field, malloc: None})
    with pytest.raises(SchemaError, match="Own has no encode"):
        DatasetWriter(str(tmp_path / "a.beton"), {"x": own()}).from_indexed_dataset([(b"x",)])
    typed = type("Typed", (Field,), {"metadata_type": np.dtype("u1"), "to_binary": BytesField().to_binary})
    with pytest.raises(WorkerError, match=r"sample 0 .*Typed has no encode"):
        DatasetWriter(str(tmp_path / "a.beton"), {"x": typed()}).from_indexed_dataset([(b"x",)])
    with pytest.raises(SchemaError, match=r"builtins\.str. Allowed: those of stepwell\.ffcv\.fields"):
        DatasetWriter(str(tmp_path / "a.beton"), {"x": "int"})
    assert not list(tmp_path.iterdir())


def test_a_field_that_raises_names_the_sample_and_leaves_no_file(tmp_path):
    class Picky(BytesField):
        def encode(self, destination, field, malloc):
            if field == b"3":
                raise ValueError("not this one")
            super().encode(destination, field, malloc)

    with pytest.raises(WorkerError, match=r"sample 3 could not be written: .*not this one"):
        writer = DatasetWriter(str(tmp_path / "a.beton"), {"x": Picky()})
        writer.from_indexed_dataset([(str(i).encode(),) for i in range(9)])
    assert not list(tmp_path.iterdir())


class Pieces(BytesField):
    """Bytes in two regions, which FFCV's format does not mind."""

    def encode(self, destination, field, malloc):
        malloc(len(field) // 2)[1][:] = 1
        super().encode(destination, field, malloc)


@pytest.mark.parametrize("sizes", [[36_000, 24_000, 0, 40_000, 1], [65_536 // 3 * 2] * 5, [1000] * 200])
def test_all_regions_of_a_sample_lie_on_one_page(tmp_path, sizes):
    samples = [(number, bytes([number % 256]) * size) for number, size in enumerate(sizes)]
    fields = {"n": IntField(), "x": Pieces()}
    DatasetWriter(str(tmp_path / "a.beton"), fields, page_size=SMALL_PAGE).from_indexed_dataset(samples)
    file = SpecFile(tmp_path / "a.beton", {"x": 3})
    assert [bytes(file.sample(number)["x"]) for number in range(len(sizes))] == [value for _, value in samples]
    reader = Reader(tmp_path / "a.beton", {"x": Pieces})
    table, pages = reader.alloc_table, reader.rows_of("x")["ptr"] // np.uint64(SMALL_PAGE)
    for number, page in enumerate(pages.tolist()):
        regions = table[(table["sample_id"] == number) & (table["size"] > 0)]
        again = regions["ptr"] // np.uint64(SMALL_PAGE) != page
        # only what a sample left on the page before, when it did not fit, counts for the one before it
        assert not again.any() or (again.sum() == 1 and pages[number + 1] == page + 1)
        assert number in table["sample_id"]


def test_a_sample_that_fits_no_page_is_an_error_that_says_so(tmp_path):
    writer = DatasetWriter(str(tmp_path / "a.beton"), {"x": Pieces()}, page_size=SMALL_PAGE)
    with pytest.raises(WorkerError, match=r"one page of 65536"):
        writer.from_indexed_dataset([(bytes(60_000),)])
    with pytest.raises(WorkerError, match=r"one region of 70000"):
        writer.from_indexed_dataset([(bytes(140_000),)])


def test_bytes_may_come_as_whole_numbers_of_any_dtype(tmp_path):
    given = [np.zeros(2), np.array([1, 255], "int64"), np.array([True, False]), np.array([3.0], "float16")]
    path = str(tmp_path / "a.beton")
    DatasetWriter(path, {"x": BytesField()}, num_workers=1).from_indexed_dataset([(value,) for value in given])
    file = SpecFile(path)
    assert [bytes(file.sample(n)["x"]) for n in range(4)] == [b"\0\0", b"\x01\xff", b"\x01\0", b"\x03"]
    for wrong in (np.array([0.5]), np.array([-1]), np.array([256]), np.array([np.nan]), np.zeros((2, 2))):
        with pytest.raises(WorkerError, match="whole numbers from 0 to 255"):
            DatasetWriter(path, {"x": BytesField()}, num_workers=1).from_indexed_dataset([(wrong,)])


def test_json_is_unpacked_as_ffcv_does():
    texts = [b'{"a": 1}\0\0', b'[1, "b"]\0\0', b'"0123456"\0']
    batch = np.stack([np.frombuffer(text, np.uint8) for text in texts])
    assert JSONField.unpack(batch) == [{"a": 1}, [1, "b"], "0123456"]
    assert JSONField.unpack(batch[1]) == [1, "b"]
    with pytest.raises(DecodeError, match="is no JSON"):
        JSONField.unpack(np.frombuffer(b"{\0", np.uint8))
