"""The loader by FFCV's names: what an epoch has, in which order, and what becomes of pipelines."""

import gc
import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stepwell.ffcv.fields.basics import FloatDecoder, IntDecoder
from stepwell.ffcv.fields.rgb_image import (
    CenterCropRGBImageDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from stepwell.ffcv.pipeline.compiler import Compiler
from stepwell.ffcv.pipeline.operation import AllocationQuery, Operation
from stepwell.ffcv.transforms.common import Squeeze
from stepwell.ffcv.traversal_order.base import TraversalOrder

import stepwell
from stepwell import Array, Image
from stepwell.errors import DatasetNotFoundError, FormatError, LoaderError, OrderError, SchemaError, WindowError
from stepwell.ffcv import DatasetWriter
from stepwell.ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from stepwell.ffcv.pipeline import PipelineSpec
from stepwell.ffcv.reader import Reader

torch = pytest.importorskip("torch")

from stepwell.ffcv.loader import Loader, OrderOption  # noqa: E402
from stepwell.ffcv.transforms import (  # noqa: E402
    Convert,
    Cutout,
    LabelMixup,
    MixupToOneHot,
    NormalizeImage,
    Poison,
    RandomHorizontalFlip,
    RandomTranslate,
    ReplaceLabel,
    ToDevice,
    ToTensor,
    ToTorchImage,
    View,
)

NUMBER = 100
MEAN, STD = np.array([120.0, 110.0, 100.0]), np.array([60.0, 50.0, 40.0])
FIELDS = {
    "image": RGBImageField(),
    "label": IntField(),
    "weight": FloatField(),
    "array": NDArrayField(np.dtype("float16"), (4, 3)),
    "data": BytesField(),
    "info": JSONField(),
}


def image_of(i):
    return np.random.default_rng(i).integers(0, 256, (20, 24, 3), dtype=np.uint8)


def sample(i):
    array = np.full((4, 3), i, "float16")
    return image_of(i), i, i / 2, array, np.full(i % 5, i, np.uint8), {"i": i}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("ffcv") / "a.beton")
    # several pages, so that quasi-random order has something to choose from
    DatasetWriter(path, FIELDS, page_size=1 << 16, num_workers=1).from_indexed_dataset(
        [sample(i) for i in range(NUMBER)]
    )
    return path


def only(name, operations):
    return {**dict.fromkeys(FIELDS), name: operations}


LABELS = [IntDecoder(), ToTensor()]


def numbers_of(loader):
    return np.concatenate([batch[0].reshape(-1) for batch in loader]).astype(int).tolist()


@pytest.mark.parametrize("order", OrderOption)
@pytest.mark.parametrize("os_cache", [True, False])
def test_an_epoch_has_every_sample_once_and_all_its_values(path, order, os_cache):
    loader = Loader(path, 16, 2, os_cache, order, seed=3, drop_last=False)
    epochs = []
    for _ in range(2):
        seen = []
        for images, labels, weights, arrays, data, infos in loader:
            seen += labels[:, 0].tolist()
            assert [info["i"] for info in JSONField.unpack(infos)] == labels[:, 0].tolist()
            for place, i in enumerate(labels[:, 0].tolist()):
                assert np.array_equal(images[place], image_of(i)) and weights[place, 0] == i / 2
                assert np.array_equal(arrays[place], np.full((4, 3), i, "float16"))
                assert data[place].tolist() == [i] * (i % 5) + [0] * (4 - i % 5)
        epochs.append(seen)
    assert all(sorted(seen) == list(range(NUMBER)) for seen in epochs)
    assert (epochs[0] == epochs[1]) == (order is OrderOption.SEQUENTIAL)
    again = Loader(path, 16, 1, os_cache, order, seed=3, drop_last=False, pipelines=only("label", [IntDecoder()]))
    assert [numbers_of(again), numbers_of(again)] == epochs


def test_quasi_random_order_keeps_few_pages_open(tmp_path):
    path = str(tmp_path / "a.beton")
    fields = {"n": IntField(), "data": BytesField()}
    samples = [(i, np.zeros(1 << 14, np.uint8)) for i in range(200)]
    DatasetWriter(path, fields, page_size=1 << 16, num_workers=1).from_indexed_dataset(samples)
    loader = Loader(path, 4, 1, order=OrderOption.QUASI_RANDOM, seed=1, pipelines={"data": None})
    pages = loader.reader.pages - loader.reader.pages.min()
    assert pages.tolist() == (np.arange(200) // 4).tolist()
    for epoch in range(3):
        left = np.bincount(pages)
        full = left.copy()
        for i in loader.traversal_order.sample_order(epoch):
            left[pages[i]] -= 1
            assert ((left < full) & (left > 0)).sum() <= 8
        assert not left.any()


@pytest.mark.parametrize("order", OrderOption)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_an_epoch_as_by_a_distributed_sampler(path, monkeypatch, order, world_size):
    found = []
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)
    for rank in range(world_size):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        options = {"order": order, "distributed": True, "drop_last": False, "pipelines": only("label", [IntDecoder()])}
        loader = Loader(path, 8, 1, indices=range(7, 57), **options)
        found.append(numbers_of(loader))
        if order is not OrderOption.QUASI_RANDOM:
            sampler = torch.utils.data.DistributedSampler(
                range(50), world_size, rank, shuffle=order is OrderOption.RANDOM, seed=0
            )
            assert found[-1] == [7 + i for i in sampler]
    assert {len(part) for part in found} == {-(-50 // world_size)}
    assert set(itertools.chain(*found)) == set(range(7, 57))


def test_a_number_of_batches_is_that_of_full_ones_or_of_all(path):
    for drop_last, number in ((True, 6), (False, 7)):
        loader = Loader(path, 16, 1, drop_last=drop_last, pipelines=only("label", [IntDecoder()]))
        assert len(loader) == number == len(list(loader))
    with pytest.raises(OrderError, match="Allowed: 0 to 99"):
        Loader(path, 16, indices=[0, 100])


class Backwards(TraversalOrder):
    def __init__(self, loader, step=1):
        super().__init__(loader)
        self.step = step

    def sample_order(self, epoch):
        return self.indices[:: -self.step]


def test_an_order_of_one_s_own_is_followed(path):
    options = {"pipelines": only("label", [IntDecoder()]), "drop_last": False}
    loader = Loader(path, 16, 1, order=Backwards, order_kwargs={"step": 3}, **options)
    assert numbers_of(loader) == list(range(99, -1, -3))
    with pytest.raises(OrderError, match="order='random'"):
        Loader(path, 16, order="random")


def test_a_pipeline_does_to_images_what_its_transforms_say(path):
    operations = [SimpleRGBImageDecoder(), RandomHorizontalFlip(1.0), NormalizeImage(MEAN, STD, np.float16)]
    pipelines = only("image", [*operations, ToTensor(), ToDevice("cpu"), ToTorchImage()])
    wanted = (np.arange(256)[:, None] - MEAN) / STD
    for (images,), start in zip(Loader(path, 16, 2, pipelines=pipelines), range(0, 96, 16), strict=True):
        assert images.dtype == torch.float16 and images.is_contiguous(memory_format=torch.channels_last)
        for place, image in enumerate(images.numpy()):
            flipped = image_of(start + place)[:, ::-1]
            assert np.array_equal(np.moveaxis(image, 0, -1), wanted.astype("float16")[flipped, [0, 1, 2]])
    planar = [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage(channels_last=False), Convert(torch.float16)]
    (images,) = next(iter(Loader(path, 4, 1, pipelines=only("image", planar))))
    assert images.dtype == torch.float16 and images.is_contiguous()
    assert np.array_equal(images, np.moveaxis(np.stack([image_of(i) for i in range(4)]), -1, 1))


def test_normalising_is_the_same_of_arrays_and_of_tensors(path):
    normalize = NormalizeImage(MEAN, STD, np.float32)
    first = [SimpleRGBImageDecoder(), normalize, ToTensor(), ToTorchImage()]
    last = [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage(), NormalizeImage(MEAN, STD, np.float32)]
    one, two = (next(iter(Loader(path, 8, 1, pipelines=only("image", each))))[0] for each in (first, last))
    assert torch.equal(one, two) and two.is_contiguous(memory_format=torch.channels_last)
    half = [SimpleRGBImageDecoder(), NormalizeImage(MEAN, STD, np.float16), ToTensor()]
    (images,) = next(iter(Loader(path, 8, 1, pipelines=only("image", half))))
    assert images.dtype == torch.int16
    (viewed,) = next(iter(Loader(path, 8, 1, pipelines=only("image", [*half, View(torch.float16)]))))
    assert torch.equal(viewed, images.view(torch.float16))


@pytest.mark.parametrize("threads", [1, 2])
def test_transforms_draw_the_same_for_any_number_of_threads(path, threads):
    def images(workers, **others):
        operations = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(3, (9, 8, 7)), Cutout(5)]
        pipelines = {**only("image", [*operations, *others.get("more", []), ToTensor()])}
        return [batch[0].clone() for batch in Loader(path, 16, workers, seed=5, pipelines=pipelines)]

    for one, other in zip(images(1), images(threads), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(images(1)[0], torch.from_numpy(np.stack([image_of(i) for i in range(16)])))


def test_modules_of_torch_and_transforms_behind_operations_of_one_s_own_are_run(path):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    class Darker(Operation):
        def generate_code(self):
            def halve(images, memory):
                memory[:] = images // 2
                return memory

            return halve

        def declare_state_and_memory(self, state):
            return state, AllocationQuery(state.shape, state.dtype)

    pipelines = only("image", [SimpleRGBImageDecoder(), Darker(), RandomHorizontalFlip(1.0), ToTensor(), Twice()])
    (images,) = next(iter(Loader(path, 8, 2, pipelines=pipelines)))
    assert np.array_equal(images, 2 * (np.stack([image_of(i) for i in range(8)]) // 2)[:, :, ::-1])


def test_chosen_samples_get_another_label_and_image(path):
    mask, alpha = np.full((20, 24, 3), 255.0), np.ones((20, 24))
    pipelines = {
        **dict.fromkeys(FIELDS),
        "label": [IntDecoder(), ReplaceLabel([90, 3], 1000), ToTensor(), Squeeze()],
        "image": [SimpleRGBImageDecoder(), Poison(mask, alpha, [3, 90]), ToTensor()],
    }
    found = {}
    loader = Loader(path, 16, 2, order=OrderOption.RANDOM, seed=0, drop_last=False, pipelines=pipelines)
    ids = iter(loader.traversal_order.sample_order(0).tolist())
    for images, labels in loader:
        found |= {next(ids): (image, label.item()) for image, label in zip(images, labels, strict=True)}
    for i, (image, label) in found.items():
        assert label == (1000 if i in (3, 90) else i)
        assert np.array_equal(image, np.full((20, 24, 3), 255) if i in (3, 90) else image_of(i))


def test_mixed_labels_become_vectors(path):
    pipelines = only("label", [IntDecoder(), LabelMixup(0.5, False), ToTensor(), MixupToOneHot(NUMBER)])
    (vectors,) = next(iter(Loader(path, 8, 1, pipelines=pipelines)))
    assert vectors.shape == (8, NUMBER) and torch.allclose(vectors.sum(1), torch.ones(8))
    assert all(set(row.nonzero()[:, 0].tolist()) <= {i, (i - 1) % 8} for i, row in enumerate(vectors))


def test_several_outputs_of_one_field_and_of_one_operation(path):
    flip = RandomHorizontalFlip(1.0)
    pipelines = {
        **dict.fromkeys(FIELDS),
        "image": PipelineSpec("image", transforms=[flip, ToTensor()]),
        "plain": PipelineSpec("image", SimpleRGBImageDecoder(), [ToTensor()]),
        "cut": PipelineSpec(flip, transforms=[Cutout(20), ToTensor()]),
        "small": PipelineSpec("image", CenterCropRGBImageDecoder((8, 8), 1.0), [ToTensor()]),
        "same": PipelineSpec(flip),
    }
    wanted = np.stack([image_of(i) for i in range(8)])
    flipped, plain, cut, small, same = next(iter(Loader(path, 8, 2, pipelines=pipelines)))
    assert np.array_equal(plain, wanted) and np.array_equal(flipped, wanted[:, :, ::-1])
    assert np.array_equal(same, flipped) and small.shape == (8, 8, 8, 3)
    changed = cut.numpy() != flipped.numpy()
    assert changed.any() and not cut[changed].any()


def test_a_pipeline_that_cannot_be_is_refused(path):
    for pipelines, text in (
        ({"image": "image"}, "a list of operations"),
        ({"image": [SimpleRGBImageDecoder(), 3]}, "a int in a pipeline"),
        ({"picture": []}, "no field 'picture'. The file has: image, label"),
        ({"more": PipelineSpec(ToTensor())}, "in no pipeline"),
    ):
        with pytest.raises(SchemaError, match=text):
            Loader(path, 8, pipelines=pipelines)


def test_one_list_of_operations_serves_several_loaders(path):
    operations = [RandomResizedCropRGBImageDecoder((8, 10)), ToTensor()]
    for _ in range(2):
        (images,) = next(iter(Loader(path, 8, 1, pipelines=only("image", operations))))
        assert images.shape == (8, 8, 10, 3)


class Fails(Operation):
    def generate_code(self):
        def fail(labels, memory):
            if labels[0, 0] >= 32:
                raise RuntimeError("it went wrong")
            return labels

        return fail

    def declare_state_and_memory(self, state):
        return replace(state, jit_mode=False), None


def test_an_error_is_raised_where_batches_are_taken(path):
    batches = iter(Loader(path, 16, 2, pipelines=only("label", [IntDecoder(), Fails()])))
    assert next(batches)[0].shape == next(batches)[0].shape == (16, 1)
    with pytest.raises(RuntimeError, match="it went wrong"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_a_loop_that_is_left_early_leaves_no_thread(path):
    loader = Loader(path, 4, 2)
    next(iter(loader))
    before = threading.active_count()
    for _ in range(5):
        for _batch in loader:
            break
    gc.collect()
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
    assert loader.next_epoch == 6


def test_batches_may_be_kept(path):
    loader = Loader(path, 4, 2, drop_last=False, batches_ahead=1, pipelines=only("label", [IntDecoder(), ToTensor()]))
    assert torch.cat([batch[0] for batch in list(loader)])[:, 0].tolist() == list(range(NUMBER))


@pytest.mark.parametrize("consumed", [0, 1, 3, 6])
def test_a_state_resumes_at_the_next_batch(path, consumed):
    def loader():
        operations = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), ToTensor()]
        pipelines = {**dict.fromkeys(FIELDS), "image": operations, "label": [IntDecoder(), ToTensor()]}
        return Loader(path, 16, 2, order=OrderOption.RANDOM, seed=9, pipelines=pipelines)

    first = loader()
    rest = [batch for _, batch in zip(range(len(first)), first, strict=False)]
    began = loader()
    for _, _batch in zip(range(consumed), began, strict=False):
        pass
    state = began.state_dict() if consumed else loader().state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    got = list(resumed) if consumed < 6 else []
    assert len(got) == (6 - consumed)
    for one, other in zip(rest[consumed:], got, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    with pytest.raises(OrderError, match="seed 9"):
        Loader(path, 16, seed=8).load_state_dict(state)


def test_epochs_may_be_resumed_after_many_others_and_be_under_way_at_once(path):
    loader = Loader(path, 8, num_workers=2, order=OrderOption.RANDOM, seed=3, pipelines=only("label", LABELS))
    first = [numbers.tolist() for (numbers,) in loader]
    iterators = [iter(loader) for _ in range(12)]
    assert [len(list(each)) for each in iterators] == [len(loader)] * 12
    loader.load_state_dict({"epoch": 0, "consumed": 8, "seed": 3})
    assert [numbers.tolist() for (numbers,) in loader] == first[1:]


def test_epochs_of_an_order_of_one_s_own_may_differ_in_length(path):
    class Shrinking(TraversalOrder):
        def sample_order(self, epoch):
            return np.arange(20 - 5 * epoch)

    loader = Loader(path, 8, num_workers=2, order=Shrinking, drop_last=False, pipelines=only("label", LABELS))
    sizes = [[len(numbers) for (numbers,) in loader] for _ in range(3)]
    assert sizes == [[8, 8, 4], [8, 7], [8, 2]]


@pytest.mark.parametrize("order", [[0, NUMBER], [-1, 3], [0.5], [[1, 2]]])
def test_an_order_of_samples_that_are_not_there_is_refused_before_they_are_read(path, order):
    class Odd(TraversalOrder):
        def sample_order(self, epoch):
            return order

    with pytest.raises(OrderError, match=f"order: .* Allowed: 0 to {NUMBER - 1}"):
        iter(Loader(path, 1, num_workers=1, order=Odd, pipelines=only("label", LABELS)))


def test_a_square_in_the_middle_lies_in_the_image(path):
    for ratio in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(WindowError, match="CenterCropRGBImageDecoder with ratio="):
            CenterCropRGBImageDecoder((8, 8), ratio)
    pipelines = only("image", [CenterCropRGBImageDecoder((2, 2), 0.01)])
    (images,) = next(iter(Loader(path, 2, num_workers=1, pipelines=pipelines)))
    # 1 % of 20 pixels is less than one
    assert np.array_equal(images[1], np.broadcast_to(image_of(1)[9, 11], (2, 2, 3)))


def test_a_batch_has_a_sample_at_least(path):
    with pytest.raises(LoaderError, match="batch_size=0"):
        Loader(path, 0)


def test_a_filter_of_no_field_is_refused(path):
    with pytest.raises(SchemaError, match="filter: there is no field 'lable'"):
        Loader(path, 8, num_workers=1).filter("lable", bool)


def test_a_filter_keeps_the_samples_of_a_condition(path):
    loader = Loader(path, 4, 1, order=OrderOption.RANDOM, drop_last=False, indices=range(50, 100))
    kept = loader.filter("weight", lambda value: value[0] >= 40)
    assert sorted(numbers_of(batch[1:2] for batch in kept)) == list(range(80, 100))


def test_images_of_several_sizes_need_a_decoder_that_makes_them_one(tmp_path):
    images = [np.full((10 + i, 20, 3), i, np.uint8) for i in range(8)]
    path = str(tmp_path / "a.beton")
    DatasetWriter(path, {"image": RGBImageField()}, num_workers=1).from_indexed_dataset([(image,) for image in images])
    with pytest.raises(TypeError, match="10 to 17 rows"):
        Loader(path, 4)
    decoder = RandomResizedCropRGBImageDecoder((6, 5))
    for start, (found,) in zip((0, 4), Loader(path, 4, 1, pipelines={"image": [decoder]}), strict=True):
        assert found.shape == (4, 6, 5, 3) and found[:, 0, 0, 0].tolist() == list(range(start, start + 4))


def test_a_file_that_is_none_is_refused_by_name(path, tmp_path):
    whole = Path(path).read_bytes()
    cases = {"empty": b"", "cut": whole[: len(whole) // 2], "text": b"no file of this kind" * 9, "short": whole[:900]}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=name):
            Loader(str(tmp_path / name), 4)
    with pytest.raises(DatasetNotFoundError, match="nothing"):
        Loader(str(tmp_path / "nothing.beton"), 4)


@pytest.mark.parametrize("order", OrderOption)
@pytest.mark.parametrize("os_cache", [True, False])
def test_a_file_of_more_than_4_gib_is_read_right(tmp_path, order, os_cache):
    path, page = tmp_path / "a.beton", 1 << 21
    fields = {"n": IntField(), "array": NDArrayField(np.dtype("int32"), (500,)), "data": BytesField()}
    DatasetWriter(path, fields, page_size=page, num_workers=1).from_indexed_dataset(
        [(i, np.full(500, i, "i4"), np.full(900_000, i, "u1")) for i in range(6)]
    )
    # the same pages behind a hole
    size, away = path.stat().st_size, 5 << 30
    reader = Reader(path)
    head, start = reader.header.copy(), reader.memory.size - reader.alloc_table.nbytes
    rows, table, pages = reader.metadata.copy(), reader.alloc_table.copy(), bytes(reader.memory[page:start])
    head["alloc_table_ptr"] += np.uint64(away)
    for ptrs in (rows["f1"], rows["f2"]["ptr"], table["ptr"]):
        np.add(ptrs, np.uint64(away), out=ptrs)
    with path.open("r+b") as file:
        file.truncate(page)
        file.write(head.tobytes())
        file.seek(reader.layout.rows_start)
        file.write(rows.tobytes())
        file.seek(page + away)
        file.write(pages + table.tobytes())
    assert path.stat().st_size == size + away
    seen = []
    for numbers, arrays, data in Loader(path, 4, 2, os_cache, order, seed=0, drop_last=False):
        seen += numbers[:, 0].tolist()
        assert (arrays == numbers).all() and (data == numbers).all()
    assert sorted(seen) == list(range(6))


def test_a_file_of_numbers_alone_has_no_quasi_random_order(tmp_path):
    path = str(tmp_path / "a.beton")
    DatasetWriter(path, {"n": IntField()}, num_workers=1).from_indexed_dataset([(i,) for i in range(9)])
    with pytest.raises(FormatError, match=r"Use OrderOption\.RANDOM"):
        Loader(path, 3, order=OrderOption.QUASI_RANDOM)


@pytest.mark.parametrize("order", OrderOption)
def test_a_store_is_read_by_the_same_names(tmp_path, order):
    schema = {"image": Image((12, 16, 3)), "state": Array(3), "reward": Array((), "float32"), "note": stepwell.Text()}
    store = stepwell.create(tmp_path / "a.well", schema)
    with store.writer() as writer:
        for length in (5, 9):
            steps = np.arange(length, dtype="float32")
            columns = {"image": np.zeros((length, 12, 16, 3), "u1"), "state": np.stack([steps] * 3, 1)}
            writer.add_episode({**columns, "reward": steps, "note": ["x"] * length})
    pipelines = {"image": [CenterCropRGBImageDecoder((6, 6), 1.0), RandomHorizontalFlip(), ToTensor()]}
    for path in (str(tmp_path / "a.well"), f"file://{tmp_path}/a.well"):
        loader = Loader(path, 4, 1, order=order, drop_last=False, pipelines=pipelines)
        batches = list(loader)
        assert [tuple(part.shape) for part in batches[0]] == [(4, 6, 6, 3), (4, 3), (4, 1)]
        rewards = torch.cat([rewards for _, _, rewards in batches])[:, 0]
        assert sorted(rewards.tolist()) == sorted([*range(5), *range(9)]) and rewards.dtype == torch.float64


def test_a_size_may_change_between_epochs(path):
    decoder = RandomResizedCropRGBImageDecoder((8, 8))
    loader = Loader(path, 16, 2, pipelines=only("image", [decoder, RandomHorizontalFlip(), ToTensor()]))
    shapes = []
    for size in (8, 8, 12):
        decoder.output_size = (size, size)
        shapes += {tuple(images.shape) for (images,) in loader}
    assert shapes == [(16, 8, 8, 3), (16, 8, 8, 3), (16, 12, 12, 3)]


def test_code_is_generated_anew_where_it_is_asked_for(path):
    for recompile in (False, True):
        operations = [FloatDecoder(), ToTensor()]
        loader = Loader(path, 16, 1, recompile=recompile, pipelines=only("weight", operations))
        code = loader.code
        list(loader)
        assert (loader.code is code) == (not recompile)


def test_compiling_is_a_setting_of_the_process():
    def twice(x):
        return 2 * x

    assert Compiler.compile(twice) is not twice and Compiler.compile(twice)(3) == 6
    Compiler.set_enabled(False)
    try:
        assert Compiler.compile(twice) is twice
    finally:
        Compiler.set_enabled(True)
    Compiler.set_num_threads(0)
    assert Compiler.num_threads >= 1
    Compiler.set_num_threads(1)
    assert Compiler.get_iterator() is range
