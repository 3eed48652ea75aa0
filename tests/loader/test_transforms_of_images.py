"""Transforms of images in a loader: what a chain does at once, what a decoder does, and who draws alike."""

import numpy as np
import pytest

import stepwell
from stepwell import Field, Loader
from stepwell.kernels.draws import Draws
from stepwell.loader.memory import ArenaPool
from stepwell.loader.transforms import BatchKey, TransformChain
from stepwell.transforms.base import Together, Transform
from stepwell.transforms.cropping import RandomCrop, RandomFlip
from stepwell.transforms.images import ToCHW, ToFloat
from stepwell.transforms.normalising import Normalize


class Alone(Transform):
    """Do what a transform does, without letting a chain know what that is."""

    def __init__(self, transform: Transform, key: str) -> None:
        self.transform = transform
        self.key = key

    def output(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
        return self.transform.output(shape, dtype)

    def __call__(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        return self.transform(values, draws)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    """A store of noise: raw images and the same as png."""
    schema = {"raw": stepwell.Image((12, 14, 3)), "png": stepwell.Image((12, 14, 3), codec="png")}
    store = stepwell.create(tmp_path_factory.mktemp("images") / "s.well", schema)
    with store.writer() as writer:
        for seed in range(3):
            images = np.random.default_rng(seed).integers(0, 256, (7, 12, 14, 3)).astype(np.uint8)
            writer.add_episode({"raw": images, "png": images})
    store.refresh()
    return store


def read(store: stepwell.Store, **fields: Field) -> dict[str, np.ndarray]:
    batches = list(Loader(store, fields, batch_size=5, order="random", seed=4, threads=2))
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def test_a_chain_that_is_fused_gives_what_its_transforms_give_one_by_one(store: stepwell.Store) -> None:
    chain = [RandomCrop(8, key="crop"), RandomFlip(key="flip"), Normalize.of(store, "raw"), ToCHW()]
    apart = [Alone(transform, key) for transform, key in zip(chain, ("crop", "flip", "", ""), strict=True)]
    found = read(store, a=Field("raw", [-1, 0], transform=chain), b=Field("raw", [-1, 0], transform=apart))
    assert found["a"].shape == (21, 2, 3, 8, 8)
    assert np.abs(found["a"] - found["b"]).max() < 1e-5


@pytest.mark.parametrize("name", ["raw", "png"])
def test_a_decoder_cuts_where_a_transform_of_its_key_does(store: stepwell.Store, name: str) -> None:
    crop = RandomCrop(8, key="crop")
    found = read(store, a=Field(name, [-1, 0], transform=crop), b=Field(name, [-1, 0], decoder=crop))
    assert np.array_equal(found["a"], found["b"])
    assert len(np.unique(found["a"], axis=0)) > 10


def test_two_fields_of_one_key_and_two_keys_together_are_cut_alike(store: stepwell.Store) -> None:
    crop = RandomCrop(8, key="crop")
    found = read(store, a=Field("raw", transform=crop), b=Field("raw", [0], transform=crop))
    assert np.array_equal(found["a"], found["b"][:, 0])
    together = Loader(store, {"a": "raw", "b": "png"}, transform=Together(("a", "b"), RandomCrop(8)))
    assert all(np.array_equal(batch["a"], batch["b"]) for batch in together)


def test_a_chain_in_the_wrong_order_is_refused_when_the_loader_is_made(store: stepwell.Store) -> None:
    with pytest.raises(stepwell.WindowError, match=r"field 'raw', transform Normalize: .* normalise before ToCHW"):
        Loader(store, {"raw": Field("raw", transform=[ToCHW(), Normalize.of(store, "raw")])})
    with pytest.raises(stepwell.WindowError, match="field 'raw', transform RandomCrop"):
        Loader(store, {"raw": Field("raw", transform=RandomCrop(13))})


def test_memory_of_a_fused_chain_is_leased_again_when_its_batch_is_gone_and_not_before() -> None:
    pools: list[ArenaPool] = []

    def arenas(num_bytes: int) -> ArenaPool:
        pools.append(ArenaPool(5 * num_bytes, max_free=2))
        return pools[-1]

    images = np.random.default_rng(0).integers(0, 256, (5, 12, 14, 3)).astype(np.uint8)
    samples = {"a": ((12, 14, 3), np.dtype(np.uint8)), "b": ((12, 14, 3), np.dtype(np.uint8))}
    # a mere cut is none of it
    fields = {"a": (RandomCrop(8), ToFloat(), ToCHW()), "b": (RandomCrop(8), RandomFlip())}
    chain = TransformChain(fields, samples=samples, arenas=arenas)
    (pool,) = pools
    assert pool.num_bytes == 5 * 3 * 8 * 8 * 4

    def apply(epoch: int) -> np.ndarray:
        return chain.apply({"a": images, "b": images}, BatchKey(0, ((epoch, range(5)),), 5))["a"]

    view = apply(0)[1:, 2].T
    kept, other = view.copy(), apply(1)
    assert np.array_equal(view, kept)
    assert not np.array_equal(view, other[1:, 2].T)
    assert pool.num_free == 0
    del view
    assert pool.num_free == 1
    assert np.array_equal(apply(0)[1:, 2].T, kept)


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_batches_that_are_kept_are_not_written_again(store: stepwell.Store, to: str) -> None:
    if to == "torch":
        pytest.importorskip("torch")
    field = Field("raw", [-1, 0], transform=[RandomCrop(8), RandomFlip(), ToFloat(), ToCHW()])

    def batches():
        return Loader(store, {"a": field}, batch_size=2, order="random", epochs=2, seed=4, threads=2, to=to)

    held = [batch["a"] for batch in batches()]
    assert len(held) > 20
    assert all(np.array_equal(one, other["a"]) for one, other in zip(held, batches(), strict=True))
