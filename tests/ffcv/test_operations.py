"""Operations and fields of users' own: what FFCV's protocol promises them."""

import itertools
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.ffcv.fields.basics import IntDecoder  # noqa: E402
from stepwell.ffcv.fields.ndarray import NDArrayDecoder  # noqa: E402
from stepwell.ffcv.fields.rgb_image import get_center_crop, get_random_crop  # noqa: E402
from stepwell.ffcv.libffcv import imdecode, memcpy, resize_crop  # noqa: E402
from stepwell.ffcv.pipeline.compiler import Compiler  # noqa: E402
from stepwell.ffcv.pipeline.operation import AllocationQuery, Operation  # noqa: E402

from stepwell.errors import WindowError  # noqa: E402
from stepwell.ffcv import DatasetWriter, Loader, OrderOption  # noqa: E402
from stepwell.ffcv.decoders import CenterCropRGBImageDecoder, SimpleRGBImageDecoder  # noqa: E402
from stepwell.ffcv.fields import Field, IntField, NDArrayField, RGBImageField  # noqa: E402
from stepwell.ffcv.loader import TraversalOrder  # noqa: E402
from stepwell.ffcv.pipeline import State  # noqa: E402
from stepwell.ffcv.transforms import Poison, RandomHorizontalFlip, RandomTranslate, ToTensor  # noqa: E402

FRAME, WINDOW = (4, 4), 4


class Episodes:
    """Windows of episodes: (first frame, frame behind the last, episode, all its frames)."""

    def __init__(self, number, length, with_more=False):
        self.frames = np.random.default_rng(0).normal(size=(number, length, *FRAME))
        self.valid, self.with_more = length - WINDOW + 1, with_more

    def __len__(self):
        return self.valid * len(self.frames)

    def __getitem__(self, i):
        start, episode = i % self.valid, i // self.valid
        window = (start, start + WINDOW, episode, self.frames[episode])
        return (window, np.full(2048, i, "float64")) if self.with_more else (window,)

    def window(self, i):
        return self.frames[i // self.valid, i % self.valid : i % self.valid + WINDOW]


class WindowDecoder(Operation):
    """Copies the frames of a window out of its episode, in a parallel loop."""

    def declare_state_and_memory(self, state):
        shape, dtype = (WINDOW, *FRAME), np.dtype("float64")
        return replace(state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def generate_code(self):
        read, copy, loop = self.memory_read, Compiler.compile(memcpy), Compiler.get_iterator()
        size = int(np.prod(FRAME)) * 8

        def decode(indices, destination, metadata, storage_state):
            for i in loop(indices.shape[0]):
                row = metadata[indices[i]]
                frames = read(row["ptr"], storage_state)
                copy(frames[row["start"] * size : row["stop"] * size], destination[i].view(np.uint8))
            return destination

        decode.is_parallel = True
        return decode


class WindowField(Field):
    """Windows whose episode is stored once, as in the thread of FFCV's issue 81."""

    # "again": a region of no bytes for each further window, as the thread's first version; "none"; "listed"
    sharing = "again"

    def __init__(self):
        self.known = {}

    @property
    def metadata_type(self):
        return np.dtype([("ptr", "<u8"), ("start", "<u4"), ("stop", "<u4")])

    @staticmethod
    def from_binary(binary):
        assert binary[:3].tobytes() == b"win"
        return WindowField()

    def to_binary(self):
        result = np.zeros(1, np.dtype([("", "<u1", 1024)]))[0]
        result[0][:3] = np.frombuffer(b"win", np.uint8)
        return result

    def encode(self, destination, field, malloc):
        start, stop, episode, frames = field
        if episode not in self.known:
            ptr, data = malloc(frames.nbytes)
            data[:] = frames.reshape(-1).view("<u1")
            self.known[episode] = ptr
        elif self.sharing == "again":
            malloc(0)
        elif self.sharing == "listed":
            allocator = malloc.__self__
            allocator.allocations.append((allocator.current_sample_id, self.known[episode], frames.nbytes))
        destination["ptr"] = self.known[episode]
        destination["start"], destination["stop"] = start, stop

    def get_decoder_class(self):
        return WindowDecoder


@pytest.fixture(scope="module", params=itertools.product(["again", "none", "listed"], [False, True]), ids=str)
def windows(request, tmp_path_factory):
    """A file of windows; with a second field, so that pages fill up in the midst of a sample."""
    sharing, with_more = request.param
    WindowField.sharing = sharing
    dataset = Episodes(12, 20, with_more)
    path = str(tmp_path_factory.mktemp("windows") / "a.beton")
    fields = {"window": WindowField()} | ({"more": NDArrayField(np.dtype("float64"), (2048,))} if with_more else {})
    DatasetWriter(path, fields, page_size=1 << 16, num_workers=2).from_indexed_dataset(dataset)
    return path, dataset


@pytest.mark.parametrize("os_cache", [True, False])
@pytest.mark.parametrize("order", OrderOption)
def test_shared_episodes_give_every_window_right(windows, order, os_cache):
    path, dataset = windows
    loader = Loader(path, 16, 2, os_cache, order, seed=1, drop_last=False, custom_fields={"window": WindowField})
    for epoch in range(2):
        order_of_epoch = loader.traversal_order.sample_order(epoch)
        assert sorted(order_of_epoch.tolist()) == list(range(len(dataset)))
        for number, batch in enumerate(loader):
            for place, i in enumerate(order_of_epoch[16 * number : 16 * number + 16].tolist()):
                assert np.array_equal(batch[0][place], dataset.window(i))
                assert not dataset.with_more or (batch[1][place] == i).all()


def test_a_custom_field_needs_its_class(windows):
    with pytest.raises(ValueError, match=r"custom_fields=\{'window': its class\}"):
        Loader(windows[0], 16)


class TextDecoder(NDArrayDecoder):
    pass


class TextField(NDArrayField):
    """Texts of one length, as in FFCV's tests."""

    def __init__(self, size):
        super().__init__(np.dtype("uint8"), (size,))

    def encode(self, destination, field, malloc):
        text = (field + "\0" * self.shape[0])[: self.shape[0]]
        return super().encode(destination, np.frombuffer(text.encode("ascii"), dtype="uint8"), malloc)


def test_a_field_that_extends_a_built_in_one_is_read_by_its_class(tmp_path):
    path, texts = str(tmp_path / "a.beton"), ["x" * (i % 50) for i in range(40)]
    DatasetWriter(path, {"text": TextField(50)}).from_indexed_dataset([(text,) for text in texts])
    with pytest.raises(ValueError, match="custom_fields="):
        Loader(path, 10, 2, pipelines={"text": [TextDecoder()]})
    loader = Loader(path, 10, 2, pipelines={"text": [TextDecoder()]}, custom_fields={"text": TextField})
    found = [row.tobytes().decode().rstrip("\0") for (batch,) in loader for row in batch]
    assert found == texts


class RunField(NDArrayField):
    """Arrays of one number, which is stored once: fewer bytes than the class that it extends has."""

    def __init__(self, *_):
        super().__init__(np.dtype("uint8"), (100,))

    @staticmethod
    def from_binary(binary):
        return RunField()

    def encode(self, destination, field, malloc):
        destination[0], data = malloc(0 if field[0] == 0 else 1)
        data[:] = field[0]

    def get_decoder_class(self):
        return RunDecoder


class RunDecoder(NDArrayDecoder):
    def generate_code(self):
        read, loop = self.memory_read, Compiler.get_iterator()

        def decode(indices, destination, metadata, storage_state):
            for i in loop(len(indices)):
                data = read(metadata[indices[i]], storage_state)
                destination[i] = data[0] if len(data) else 0
            return destination

        decode.is_parallel = True
        return decode


def test_a_field_that_extends_a_built_in_one_may_store_other_sizes_and_none(tmp_path):
    path = str(tmp_path / "a.beton")
    samples = [(np.full(100, i % 5, "u1"), i, np.full((4, 4, 3), i, "u1")) for i in range(40)]
    fields = {"run": RunField(), "n": IntField(), "image": RGBImageField()}
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(samples)
    loader = Loader(path, 8, 2, order=OrderOption.RANDOM, custom_fields={"run": RunField})
    for runs, numbers, images in loader:
        assert (runs == numbers % 5).all() and (images[:, 0, 0] == numbers).all()


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "a.beton")
    fields = {"n": IntField(), "more": NDArrayField(np.dtype("float32"), (3,))}
    samples = [(i, np.full(3, i, np.float32)) for i in range(40)]
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(samples)
    return path


class WithIndices(Operation):
    """FFCV's example: labels are corrupted by the number of the sample alone."""

    def generate_code(self):
        loop = Compiler.get_iterator()

        def corrupt(labels, _, indices):
            for i in loop(labels.shape[0]):
                number = np.int64(indices[i])
                np.random.seed(number)
                if np.random.rand() < 0.5:
                    labels[i] = -number
            return labels

        corrupt.is_parallel = True
        corrupt.with_indices = True
        return corrupt

    def declare_state_and_memory(self, state):
        return state, None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("compiled", [True, False])
def test_an_operation_gets_the_numbers_of_the_samples(path, workers, compiled):
    Compiler.set_enabled(compiled)
    try:
        pipelines = {"n": [IntDecoder(), WithIndices(), ToTensor()], "more": None}
        loader = Loader(path, 8, workers, order=OrderOption.RANDOM, seed=2, pipelines=pipelines)
        epochs = [torch.cat([batch[0] for batch in loader])[:, 0].tolist() for _ in range(2)]
    finally:
        Compiler.set_enabled(True)
    changed = {-i for i in epochs[0] if i < 0}
    assert changed == {-i for i in epochs[1] if i < 0} and 8 < len(changed) < 32
    assert sorted(map(abs, epochs[0])) == list(range(40))


class Shift(Operation):
    """Adds a number that all pipelines share, drawn once a batch."""

    def __init__(self):
        super().__init__()
        self.drawn = itertools.count(100)

    def declare_shared_memory(self, state):
        return AllocationQuery((1,), np.dtype("int64"))

    def generate_code_for_shared_state(self):
        drawn = self.drawn

        def draw(memory):
            memory[:] = next(drawn)

        return draw

    def generate_code(self):
        def shift(values, memory, shared):
            return values + shared[0, 0]

        return shift

    def declare_state_and_memory(self, state):
        return state, None


def test_pipelines_of_one_operation_share_its_memory(path):
    shift = Shift()
    pipelines = {"n": [IntDecoder(), shift], "more": [NDArrayDecoder(), shift]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        batches = list(Loader(path, 8, 1, pipelines=pipelines))
    for number, (labels, more) in enumerate(batches):
        start = 8 * number
        assert labels[:, 0].tolist() == [i + 100 + number for i in range(start, start + 8)]
        assert np.array_equal(more[:, 0], labels[:, 0])


class Python(Operation):
    """What numba cannot compile."""

    def __init__(self):
        super().__init__()
        self.threads, self.seen = set(), []

    def generate_code(self):
        def note(values, memory):
            self.threads.add(threading.get_ident())
            self.seen.append(int(values[0, 0]))
            return values

        return note

    def declare_state_and_memory(self, state):
        return state, None


def test_what_numba_cannot_compile_runs_as_python_in_order_and_says_so(path):
    note = Python()
    loader = Loader(path, 4, 2, pipelines={"n": [IntDecoder(), note], "more": None})
    with pytest.warns(UserWarning, match="Python: numba cannot compile it"):
        list(loader)
    list(loader)
    assert note.seen == [*range(0, 40, 4)] * 2 and threading.get_ident() not in note.threads


@pytest.fixture
def images(tmp_path):
    path = str(tmp_path / "images.beton")
    values = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    DatasetWriter(path, {"image": RGBImageField()}, num_workers=1).from_indexed_dataset([(each,) for each in values])
    return path, values


class FlipAll(RandomHorizontalFlip):
    def generate_code(self):
        def flip(images, memory):
            memory[:] = images[:, :, ::-1]
            return memory

        return flip


class ShiftAll(RandomTranslate):
    def generate_code(self):
        padding = self.padding

        def shift(images, memory):
            memory[:, padding:-padding, padding:-padding] = images
            images[:] = memory[:, padding:-padding, padding:-padding]
            return images

        return shift


class Half(Poison):
    def generate_code(self):
        def halve(images, memory, indices):
            memory[:] = images
            memory /= 2
            images[:] = memory
            return images

        halve.with_indices = True
        return halve


EXTENDING = {
    "flip": (FlipAll(), lambda values: values[:, :, ::-1]),
    "shift": (ShiftAll(2), lambda values: values),
    "poison": (Half(np.zeros((8, 8, 3)), np.ones((8, 8)), [1]), lambda values: values // 2),
}


@pytest.mark.parametrize("name", EXTENDING)
def test_an_operation_that_extends_one_of_ffcv_s_has_its_memory(images, name):
    path, values = images
    operation, made = EXTENDING[name]
    loader = Loader(path, 16, 1, pipelines={"image": [SimpleRGBImageDecoder(), operation]})
    ((found,),) = loader
    assert np.array_equal(found, made(values))


class ByPages(TraversalOrder):
    """All samples of a page, then those of the next."""

    def sample_order(self, epoch):
        pages = self.loader.memory_manager.page_to_samples
        return np.concatenate([sorted(pages[page]) for page in sorted(pages)])


def test_an_order_of_one_s_own_knows_the_pages(path):
    loader = Loader(path, 8, 1, order=ByPages)
    assert torch.cat([batch[0] for batch in loader])[:, 0].tolist() == list(range(40))
    manager = loader.memory_manager
    assert {page for pages in manager.sample_to_pages.values() for page in pages} == set(manager.page_to_samples)


class Halves(Operation):
    """Several memories, and another shape."""

    def declare_state_and_memory(self, state):
        dtype = np.dtype("float32")
        return replace(state, shape=(2,), dtype=dtype), (AllocationQuery((2,), dtype), AllocationQuery((3,), "<f8"))

    def generate_code(self):
        def halve(values, memories):
            out, wide = memories
            wide[:] = values / 2
            out[:, 0] = wide[:, 0]
            out[:, 1] = wide[:, 2]
            return out

        return halve


def test_an_operation_may_ask_for_several_memories(path):
    batches = list(Loader(path, 16, 1, drop_last=False, pipelines={"n": None, "more": [NDArrayDecoder(), Halves()]}))
    assert [batch.shape for (batch,) in batches] == [(16, 2), (16, 2), (8, 2)]
    assert np.concatenate([batch[:, 1] for (batch,) in batches]).tolist() == [i / 2 for i in range(40)]


def test_a_state_that_numba_cannot_have_is_refused():
    with pytest.raises(AssertionError):
        State(True, torch.device("cpu"), (3,), torch.float32)
    assert State(False, torch.device("cpu"), (3,), torch.float32).shape == (3,)


@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "f4", "f8"])
def test_memcpy_copies_what_fits(dtype):
    source = np.random.default_rng(0).integers(0, 200, (100, 99)).astype(dtype)
    for copy in (memcpy, Compiler.compile(memcpy)):
        target = np.zeros_like(source)
        copy(source, target)
        assert np.array_equal(source, target)
        short = np.zeros(10, dtype)
        copy(source, short)
        assert np.array_equal(short, source[0, :10])


class CropDecoder(SimpleRGBImageDecoder):
    """An image decoder of users' own, by FFCV's functions: the square in the middle, resized."""

    def declare_state_and_memory(self, state):
        most = np.uint64(self.metadata["height"].max()) * np.uint64(self.metadata["width"].max())
        out, dtype = (16, 16, 3), np.dtype("uint8")
        queries = (AllocationQuery(out, dtype), AllocationQuery((most * np.uint64(3),), dtype))
        return replace(state, jit_mode=True, shape=out, dtype=dtype), queries

    def generate_code(self):
        read, loop, jpg = self.memory_read, Compiler.get_iterator(), 0
        decode_file, resize, crop = (Compiler.compile(each) for each in (imdecode, resize_crop, get_center_crop))

        def decode(indices, memories, metadata, storage_state):
            destination, whole = memories
            for i in loop(len(indices)):
                row = metadata[indices[i]]
                data = read(row["data_ptr"], storage_state)
                height, width = np.uint32(row["height"]), np.uint32(row["width"])
                if row["mode"] == jpg:
                    decode_file(data, whole[i], height, width, height, width, 0, 0, 1, 1, False, False)
                    data = whole[i][: 3 * height * width]
                top, left, high, wide = crop(height, width, 1.0, 0.75)
                resize(data.reshape(height, width, 3), top, top + high, left, left + wide, destination[i])
            return destination

        decode.is_parallel = True
        return decode


@pytest.mark.parametrize("mode", ["raw", "jpg"])
def test_a_decoder_of_images_of_one_s_own_has_ffcv_s_functions(tmp_path, mode):
    pytest.importorskip("simplejpeg")
    path, ramp = str(tmp_path / "a.beton"), np.add.outer(np.arange(60), 2 * np.arange(80))[..., None]
    samples = [((ramp + np.array([0, 9, 50]) + i).astype(np.uint8)[: 60 - i],) for i in range(8)]
    DatasetWriter(path, {"image": RGBImageField(mode)}, num_workers=1).from_indexed_dataset(samples)
    with pytest.warns(UserWarning, match="CropDecoder: numba cannot compile it"):
        ((mine,),) = Loader(path, 8, 2, pipelines={"image": [CropDecoder()]})
    ((ours,),) = Loader(path, 8, 2, pipelines={"image": [CenterCropRGBImageDecoder((16, 16), 0.75)]})
    assert np.array_equal(mine, ours)


def test_what_ffcv_s_functions_do_not_do_here_is_refused():
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(WindowError, match="imdecode with a scale"):
        imdecode(image, image, 8, 8, 8, 8, 0, 0, 1, 2, False, False)
    np.random.seed(0)
    boxes = [get_random_crop(40, 30, (0.1, 0.5), (0.75, 4 / 3)) for _ in range(50)]
    assert all(0 <= top <= 40 - high and 0 <= left <= 30 - wide for top, left, high, wide in boxes)
    assert len({(high, wide) for _, _, high, wide in boxes}) > 20
