"""Windows of images of any size: objects as they are, arrays by a decoder, from one store or several."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell
from stepwell import Field, Image, View
from stepwell.codecs import Decoder
from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.store import Store
from stepwell.testing import smooth_image
from stepwell.transforms import CenterCrop, CenterResizedCrop, RandomCrop, RandomResizedCrop, Resize
from stepwell.windows import WindowReader

pytest.importorskip("imagecodecs")

Pixels = npt.NDArray[np.uint8]
DECODERS = [Resize(8), CenterCrop(9), CenterResizedCrop(12), RandomCrop(9, key="a"), RandomResizedCrop(8, key="a")]


def pictures(number: int, seed: int = 0) -> list[Pixels]:
    rng = np.random.default_rng(seed)
    return [smooth_image(Image((*rng.integers(10, 30, 2), 3)), seed + k) for k in range(number)]


def make(path: Path, feature: Any, images: list[list[Pixels]]) -> Store:
    store = stepwell.create(path, {"image": feature, "label": stepwell.Array((), "int64")}, segment_bytes=4000)
    with store.writer() as writer:
        for episode in images:
            writer.add_episode({"image": episode, "label": np.arange(len(episode))})
    store.refresh()
    return store


def drawn_of(count: int) -> Any:
    return lambda purpose: Draws.of(np.array([7, len(purpose)], np.uint64), np.arange(count))


def read(view: Any, field: Any, anchors: list[int], **options: Any) -> Any:
    reader = WindowReader(view if isinstance(view, View) else View(view), {"image": field, "label": "label"}, **options)
    return reader.read(np.array(anchors), draws=drawn_of(len(anchors)))


@pytest.fixture(scope="module", params=["raw", "png", "jpeg"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    if request.param == "jpeg":
        pytest.importorskip("simplejpeg")
    path = tmp_path_factory.mktemp("any") / f"{request.param}.well"
    return make(path, Image((None, None, 3), codec=request.param), [pictures(5), pictures(2, 1), pictures(4, 2)])


def test_without_a_decoder_each_cell_is_an_image_of_its_own_size(store: Store) -> None:
    batch = read(store, Field("image", [-1, 0]), [0, 4, 6])
    assert batch["image"].shape == (3, 2)
    assert batch["image"].dtype == object
    whole = [store[0]["image"], store[1]["image"]]
    expected = [whole[0][0], whole[0][0], whole[0][3], whole[0][4], whole[1][0], whole[1][1]]
    for image, one in zip(batch["image"].reshape(-1), expected, strict=True):
        np.testing.assert_array_equal(image, one)


def test_padding_with_zeros_is_an_image_without_pixels(store: Store) -> None:
    batch = read(store, Field("image", [-1, 0], pad="zero"), [0])
    assert batch["image"][0, 0].shape == (0, 0, 3)
    assert batch["image"][0, 0].dtype == np.uint8
    decoded = read(store, Field("image", [-1, 0], pad="zero", decoder=Resize(8)), [0])
    assert decoded["image"].shape == (1, 2, 8, 8, 3)
    assert not decoded["image"][0, 0].any()
    assert decoded["image_is_pad"].tolist() == [[True, False]]


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_a_decoder_makes_of_each_image_what_it_makes_of_it_alone(store: Store, decoder: Any, page_cache: bool) -> None:
    anchors = [0, 3, 5, 6, 10, 3]
    batch = read(store, Field("image", [0, 1], decoder=decoder), anchors, page_cache=page_cache)
    (height, width, _), dtype = decoder.output(Image((None, None, 3)))
    assert (batch["image"].shape, batch["image"].dtype) == ((6, 2, height, width, 3), dtype)
    images = [image for episode in store for image in episode["image"]]
    purpose = "key a" if decoder.is_random else "decoder of image"
    drawn = decoder.draw(Image((None, None, 3)), drawn_of(6)(purpose))
    ends = {3: 4, 5: 6, 6: 6, 10: 10, 0: 1}
    out = np.empty((height, width, 3), np.uint8)
    # a JPEG file that shrinks by half or more is decoded at a smaller scale
    is_near = store.path.name == "jpeg.well" and decoder.resampling
    for i, anchor in enumerate(anchors):
        for step, row in enumerate((anchor, ends[anchor])):
            decoder.convert(images[row], out, None if drawn is None else drawn[i])
            assert np.abs(batch["image"][i, step].astype(int) - out).mean() <= (4 if is_near else 0)


def test_stores_of_one_size_of_another_and_of_any_are_read_together(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    images = {
        "any": [pictures(4)],
        "raw": [[image[:12, :14].copy() for image in pictures(40, 5) if min(image.shape[:2]) >= 14][:4]],
        "delta": [[image[:16, :11].copy() for image in pictures(60, 6) if min(image.shape[:2]) >= 16][:4]],
    }
    features = {
        "any": Image((None, None, 3), codec="png"),
        "raw": Image((12, 14, 3)),
        "delta": Image((16, 11, 3), codec="delta", every=3),
    }
    for names in (("any", "raw", "delta"), ("raw", "delta", "any"), ("delta", "raw", "any")):
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        view = View([make(folder / f"{name}.well", features[name], images[name]) for name in names])
        rows = [image for name in names for image in images[name][0]]
        for decoder in (RandomCrop(9, key="a"), Resize((7, 9)), CenterCrop(10)):
            batch = read(view, Field("image", decoder=decoder), list(range(12)))
            drawn = decoder.draw(features["any"], drawn_of(12)("key a"))
            out = np.empty(decoder.output(features["any"])[0], np.uint8)
            for i, row in enumerate(rows):
                decoder.convert(row, out, None if drawn is None else drawn[i])
                np.testing.assert_array_equal(batch["image"][i], out)


def test_stores_of_several_sizes_are_not_read_together_without_a_decoder(tmp_path: Path) -> None:
    one = make(tmp_path / "one.well", Image((None, None, 3), codec="png"), [pictures(2)])
    two = make(tmp_path / "two.well", Image((12, 14, 3)), [[np.zeros((12, 14, 3), np.uint8)]])
    with pytest.raises(WindowError, match=r"do not agree on 'image': .*become alike by Field\('image', decoder=Resize"):
        WindowReader(View([one, two]), {"image": "image"})


def test_an_image_that_is_too_small_is_named(store: Store) -> None:
    with pytest.raises(
        LoaderError, match=r"episode 0, step \d, field 'image' .*CenterCrop to 29x29 of images of \d+x\d+"
    ):
        read(store, Field("image", decoder=CenterCrop(29)), list(range(5)))


class Brightest(Decoder):
    """The brightest pixel of each image."""

    def output(self, feature: Any) -> Any:
        return (3,), feature.np_dtype

    def convert(self, pixels: Any, out: Any, draw: Any) -> None:
        out[...] = pixels.reshape(-1, 3).max(axis=0)


class Whole(Decoder):
    """The image itself, which has no one shape."""

    def convert(self, pixels: Any, out: Any, draw: Any) -> None:
        out[...] = pixels


def test_a_decoder_of_ones_own_says_what_shape_comes_out(store: Store) -> None:
    batch = read(store, Field("image", decoder=Brightest()), [0, 1])
    assert batch["image"].tolist() == [image.reshape(-1, 3).max(axis=0).tolist() for image in store[0]["image"][:2]]
    with pytest.raises(
        WindowError, match=r"Whole object.*varies.*Its output\(\) must return the one shape that comes out"
    ):
        read(store, Field("image", decoder=Whole()), [0])


def test_other_rows_that_vary_have_no_decoder(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"points": stepwell.Array((None, 3))})
    with store.writer() as writer:
        writer.append(points=np.zeros((2, 3), np.float32))
        writer.end_episode()
    store.refresh()
    with pytest.raises(WindowError, match="varies in size from step to step: a decoder needs a fixed shape, or images"):
        WindowReader(View(store), {"points": Field("points", decoder=Resize(8))})


def test_images_of_any_size_are_not_stacked_without_a_decoder(tmp_path: Path) -> None:
    feature = Image((None, None, 3), codec="png")
    store = stepwell.create(tmp_path / "a.well", {"left": feature, "right": feature})
    with store.writer() as writer:
        writer.add_episode({"left": pictures(3), "right": pictures(3, 1)})
    store.refresh()
    with pytest.raises(WindowError, match="varies in size from step to step and cannot be combined"):
        WindowReader(View(store), {"both": Field(("left", "right"), combine="stack")})
    for decoder in (Resize(8), RandomCrop(9)):
        reader = WindowReader(View(store), {"both": Field(("left", "right"), combine="stack", decoder=decoder)})
        assert reader.read(np.arange(3))["both"].shape[:2] == (3, 2)
