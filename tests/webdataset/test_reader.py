"""The reader of shards: the real ones to their values; members of every kind; in place, imported, over HTTP."""

import gzip
import importlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds_of_images import image_files
from shards import npy, picture, sample, write_tar  # type: ignore[import-not-found]
from web_server import WebServer

import stepwell
from stepwell import Array, Bytes, Image, Loader, Text, convert
from stepwell.codecs import make_codec
from stepwell.errors import DatasetNotFoundError, FormatError, LeftOutWarning, WorkerError
from stepwell.formats import find_reader
from stepwell.schema import Feature
from stepwell.testing import check_damage
from stepwell.webdataset import WebDatasetReader, read_tar_index

LENGTHS = [11, 9, 13, 7]


def shard(path: Path, members: list[tuple[str, bytes]]) -> str:
    return str(write_tar(path, members))


def jpeg(number: int, height: int = 24, width: int = 32, shape: tuple[int, ...] = (3,)) -> bytes:
    pixels = picture(number, height, width)
    feature = Image((height, width, *shape), codec="jpeg")
    return stepwell.codecs.make_codec(feature).encode(pixels if shape == (3,) else pixels[..., :1])


def assert_is_real(store: Any, expected: Any) -> None:
    assert np.array_equal(np.concatenate([episode["jpg"] for episode in store]), expected["image"])
    assert np.array_equal(np.concatenate([episode["vec.npy"] for episode in store]), expected["vec"])
    assert np.array_equal(np.concatenate([episode["cls"] for episode in store]), expected["label"])
    told = [json.loads(episode["json"][0]) for episode in store]
    assert [record["id"] for record in told] == expected["id"].tolist()
    assert [record["label"] for record in told] == expected["label"].tolist()


def test_real_shards_are_imported_to_their_values_a_shard_a_segment(real_shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    report = convert(real_shards / "train-{000000..000003}.tar", tmp_path / "a.well", workers=2)
    store = stepwell.open(report.path)
    assert_is_real(store, np.load(real_shards / "expected.npz"))
    assert [segment.num_rows for segment in store.segments] == LENGTHS
    assert store.metadata["shards"] == [f"train-00000{n}.tar" for n in range(4)]


def test_real_shards_are_read_in_place_to_their_values(real_shards: Path) -> None:
    pytest.importorskip("simplejpeg")
    store = stepwell.open(f"webdataset://{real_shards}")
    assert_is_real(store, np.load(real_shards / "expected.npz"))
    assert store.schema is not None and store.schema["jpg"].codec == store.schema["vec.npy"].codec == "file-span"
    assert store[12]["__key__"] == ["dir/00012"]


# webdataset leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_samples_are_those_of_webdataset(real_shards: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    reader = WebDatasetReader(str(real_shards / "train-{000000..000003}.tar"))
    found = list(webdataset.WebDataset(str(real_shards / "train-{000000..000003}.tar"), shardshuffle=False))
    for sample_of, episode in zip(found, reader.episodes(), strict=True):
        assert [sample_of["__key__"]] == episode.columns["__key__"]
        assert [sample_of["jpg"]] == list(episode.columns["jpg"])
        assert int(sample_of["cls"]) == episode.columns["cls"][0]


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """Two shards of three and two samples of all kinds but images."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    shard(folder / "a.tar", [member for n in range(3) for member in sample(n)])
    shard(folder / "b.tar", [member for n in (3, 4) for member in sample(n)])
    return str(folder)


def test_members_become_features_by_their_endings(mixed: str) -> None:
    reader = WebDatasetReader(mixed)
    assert dict(reader.schema) == {
        "__key__": Text(),
        "cls": Array((), "int64"),
        "txt": Text(),
        "json": Text(),
        "vec.npy": Array((2, 3)),
        "more.npz.a": Array((None,), "int64"),
        "more.npz.b": Array((), "float64"),
        "bin": Bytes(),
    }
    assert (
        reader.edges.tolist() == [0, 3] and len(reader) == 5 and reader.label(4) == f"sample set/00004 of {mixed}/b.tar"
    )


@pytest.mark.parametrize("way", ["import", "in place", "one by one"])
def test_values_are_those_of_the_members_whichever_way_they_are_read(mixed: str, tmp_path: Path, way: str) -> None:
    if way == "in place":
        store = stepwell.open(f"webdataset://{mixed}")
    else:
        # chosen episodes with a gap are read one by one
        convert(mixed, tmp_path / "a.well", workers=1, episodes=None if way == "import" else [0, 1, 2, 4])
        store = stepwell.open(tmp_path / "a.well")
    for episode in store:
        number = int(episode["__key__"][0][-5:])
        assert episode["cls"].tolist() == [number % 7] and episode["txt"] == [f"sämple {number}"]
        assert json.loads(episode["json"][0])["at"] == {"row": number}
        assert episode["vec.npy"].tolist() == [[[number] * 3] * 2]
        assert episode["more.npz.a"][0].tolist() == list(range(number % 3 + 1)) and episode["more.npz.b"] == [number]
        assert episode["bin"] == [bytes([number]) * number]
    assert len(store) == (4 if way == "one by one" else 5)


@pytest.mark.filterwarnings("ignore:.*tags left out")
def test_options_come_in_python_and_as_text(mixed: str) -> None:
    store = stepwell.open(f"webdataset://{mixed}?json=columns&ignore=npz,more.npz,bin&rename=cls=label,at.row=row")
    assert list(store.schema or ()) == ["__key__", "label", "txt", "score", "row", "vec.npy"]
    assert [episode["row"][0] for episode in store] == [0, 1, 2, 3, 4]
    reader = WebDatasetReader(mixed, endings=["cls", "size.bin"], rename={"__key__": "name"})
    assert list(reader.schema) == ["name", "cls"]
    doubled = WebDatasetReader(mixed, endings="bin", decoders={"bin": (Array((), "int32"), lambda data: 2 * len(data))})
    assert [episode.columns["bin"][0] for episode in doubled.episodes()] == [0, 2, 4, 6, 8]
    for options, words in (
        ({"json": "x"}, "json='x'"),
        ({"allow_cut": "maybe"}, "allow_cut"),
        ({"rename": "a"}, "new name"),
    ):
        with pytest.raises(FormatError, match=words):
            WebDatasetReader(mixed, **options)  # type: ignore[arg-type]


def test_images_of_one_size_are_fixed_and_others_are_of_any_size(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    same = [(f"{n}.jpg", jpeg(n)) for n in range(3)]
    assert WebDatasetReader(shard(tmp_path / "a.tar", same)).schema["jpg"] == Image((24, 32, 3), codec="jpeg")
    grey = [("3.jpg", jpeg(3, shape=(1,)))]
    assert WebDatasetReader(shard(tmp_path / "b.tar", same + grey)).schema["jpg"] == Image((24, 32, 3), codec="jpeg")
    other = WebDatasetReader(shard(tmp_path / "c.tar", [*same, ("3.jpg", jpeg(3, 40, 20))]))
    assert other.schema["jpg"] == Image((None, None, 3), codec="jpeg")
    store = stepwell.open(f"webdataset://{tmp_path}/c.tar")
    assert [episode["jpg"][0].shape for episode in store] == [(24, 32, 3)] * 3 + [(40, 20, 3)]


def _pillow(mode: str, kind: str, number: int = 1, **options: Any) -> bytes:
    image = pytest.importorskip("PIL.Image")
    import io

    stream = io.BytesIO()
    image.fromarray(picture(number)).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize(("mode", "kind"), [("P", "PNG"), ("LA", "PNG"), ("CMYK", "JPEG"), ("RGB", "WEBP")])
def test_images_that_are_not_plain_are_read_as_they_are(tmp_path: Path, mode: str, kind: str) -> None:
    pytest.importorskip("imagecodecs")
    import io

    image = pytest.importorskip("PIL.Image")
    options = {"lossless": True} if kind == "WEBP" else {}
    data = _pillow(mode, kind, **options)
    path = shard(tmp_path / "a.tar", [("0.png" if kind == "PNG" else "0.webp", data)])
    store = stepwell.open(f"webdataset://{path}")
    (found,) = (episode["png" if kind == "PNG" else "webp"][0] for episode in store)
    wanted = np.asarray(image.open(io.BytesIO(data)).convert("RGBA" if mode == "LA" else "RGB"))
    assert np.abs(found.astype(int) - wanted).max() <= 1 and found.shape == wanted.shape


def _odd_shard(path: Path, names: Sequence[str]) -> str:
    files = image_files(24, 32)
    members = [(f"{number:02}.jpg", files[name].data) for number, name in enumerate(names)]
    return shard(path, [*members, ("99.jpg", jpeg(0))])


@pytest.mark.parametrize(
    ("names", "feature"),
    [
        (["jpeg cmyk", "jpeg grey", "jpeg ycck adobe"], Image((24, 32, 3), codec="jpeg")),
        (["jpeg cmyk", "png grey", "png palette 4", "webp"], Image((24, 32, 3), codec="image-file")),
        (["png rgba", "png grey alpha", "webp rgba"], Image((24, 32, 4), codec="image-file")),
    ],
)
def test_odd_images_among_plain_ones_have_the_same_values_in_place_and_imported(
    tmp_path: Path, names: list[str], feature: Feature
) -> None:
    pytest.importorskip("imagecodecs")
    pytest.importorskip("simplejpeg")
    path = _odd_shard(tmp_path / "a.tar", names)
    there = stepwell.open(f"webdataset://{path}")
    convert(path, tmp_path / "a.well", workers=1)
    store = stepwell.open(tmp_path / "a.well")
    assert store.schema["jpg"] == feature and there.schema["jpg"].codec == "file-span"
    (batch,) = stepwell.Loader(there, {"image": "jpg"}, batch_size=len(names) + 1, order="sequential")
    for number, name in enumerate(names):
        shown, wanted = batch["image"][number], image_files(24, 32)[name].colors
        assert np.abs(shown[..., :3].astype(int) - wanted).max() <= 24
        assert np.array_equal(store[number]["jpg"][0], shown)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("0.cls", b"seven", r"a.tar: 0\.cls, byte 512: invalid literal"),
        ("0.jpg", b"nothing", r"0\.jpg, byte 512: not a JPEG, PNG or WebP file"),
        ("0.npy", b"nothing", r"0\.npy, byte 512: not a \.npy file"),
        ("0.npy", npy(np.zeros(9))[:-4], r"0\.npy, byte 512: 196 bytes, where"),
        ("0.npy", npy(np.array([{}], object)), "0.npy|object"),
        ("0.npz", b"nothing", r"0\.npz, byte 512: not a \.npz file"),
        ("0.x.pth", b"", r"0\.x\.pth, byte 512: x\.pth files are pickles, .* ignore=\"x\.pth\""),
        ("0.a b", b"", "rename="),
        ("README", b"", "no samples in"),
    ],
)
def test_members_that_cannot_be_read_are_named(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = shard(tmp_path / "a.tar", [(name, data)])
    with pytest.raises(FormatError, match=words):
        list(WebDatasetReader(path).episodes())


def test_a_text_that_is_not_utf_8_is_named_when_it_is_imported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.txt", "ß".encode()), ("b.txt", b"\xff")])
    with pytest.raises(WorkerError, match=r"a\.tar: b\.txt, byte \d+: not UTF-8: .*with ignore="):
        convert(str(path), tmp_path / "a.well", workers=0)


def test_json_that_differs_later_is_named(tmp_path: Path) -> None:
    members = [(f"{n:02d}.json", b'{"a": 1}') for n in range(20)]
    for data, words in ((b"{}", "no 'a'"), (b'{"a": "x"}', "'a' is 'x'"), (b"[]", "an object"), (b"{", "Expecting")):
        path = shard(tmp_path / "a.tar", [*members, ("20.json", data)])
        with pytest.raises(FormatError, match=rf"20\.json, byte \d+: .*{words}"):
            list(WebDatasetReader(path, json="columns").episodes())


def test_members_that_samples_lack_are_an_error_or_left_out(tmp_path: Path) -> None:
    members = [("0.cls", b"1"), ("0.txt", b"a"), ("1.cls", b"2"), ("2.txt", b"c"), ("3.cls", b"4"), ("3.txt", b"d")]
    path = shard(tmp_path / "a.tar", members)
    with pytest.raises(FormatError, match=r"a\.tar: sample 1 has no \.txt, which others have"):
        WebDatasetReader(path)
    with pytest.raises(FormatError, match=r"b\.tar: sample 2 has no \.cls, which others have"):
        WebDatasetReader(shard(tmp_path / "b.tar", members[3:]))
    reader = WebDatasetReader(path, allow_missing=True)
    assert [(episode.columns["cls"][0], list(episode.columns["txt"])) for episode in reader.episodes()] == [
        (1, [b"a"]),
        (4, [b"d"]),
    ]
    store = stepwell.open(f"webdataset://{path}?allow_missing=true")
    assert [episode["txt"] for episode in store] == [["a"], ["d"]]


def test_arrays_of_varying_length_or_in_fortran_order_are_copied(tmp_path: Path) -> None:
    turned = np.asfortranarray(np.arange(6).reshape(2, 3))
    members = [
        ("0.a.npy", npy(np.zeros((1, 2)))),
        ("0.b.npy", npy(turned)),
        ("1.a.npy", npy(np.ones((3, 2)))),
        ("1.b.npy", npy(turned)),
    ]
    store = stepwell.open(f"webdataset://{shard(tmp_path / 'a.tar', members)}")
    assert [episode["a.npy"][0].shape for episode in store] == [(1, 2), (3, 2)]
    assert all(np.array_equal(episode["b.npy"][0], turned) for episode in store)
    other = shard(tmp_path / "b.tar", [("0.npy", npy(np.zeros((1, 2)))), ("1.npy", npy(np.zeros((1, 3))))])
    with pytest.raises(FormatError, match=r"npy: arrays of float64 and shapes \(1, 2\), \(1, 3\)"):
        WebDatasetReader(other)


def test_it_is_sent_to_workers_without_the_members(mixed: str) -> None:
    reader = WebDatasetReader(mixed)
    there = pickle.loads(pickle.dumps(reader))
    assert there._shards == {} and there[4].columns["__key__"] == reader[4].columns["__key__"]
    assert there.identity == reader.identity
    with pytest.raises(IndexError):
        reader[5]


def test_it_is_found_by_looking(mixed: str) -> None:
    assert find_reader(mixed) is find_reader(f"{mixed}/{{a,b}}.tar") is WebDatasetReader
    with pytest.raises(DatasetNotFoundError, match="no files fit"):
        WebDatasetReader(f"{mixed}/*.none.tar")


def test_a_shard_that_was_cut_off_is_refused_unless_it_is_allowed(mixed: str) -> None:
    path = Path(mixed, "a.tar")
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(FormatError, match=r"a\.tar is cut off"):
        WebDatasetReader(mixed)
    reader = WebDatasetReader(mixed, allow_cut="true")
    assert 2 <= len(reader) < 5


def test_of_a_shard_cut_at_any_place_the_samples_that_are_whole_are_read(mixed: str) -> None:
    path = Path(mixed, "a.tar")
    data, index = path.read_bytes(), read_tar_index(str(path))
    # one past the last byte of each sample: 3 samples of 6 members each
    ends = (index.offsets + index.sizes)[5::6].tolist()
    for place in range(ends[0] - 600, ends[2] + 600, 97):
        path.write_bytes(data[:place])
        with pytest.raises(FormatError, match=r"a\.tar is cut off"):
            WebDatasetReader(mixed)
        reader = WebDatasetReader(mixed, allow_cut=True)
        assert len(reader) == sum(end <= place for end in ends) + 2
        assert [episode.columns["cls"][0] for episode in reader.episodes()][-2:] == [3, 4]


def test_a_sample_that_lacks_members_is_no_less_an_error_in_a_shard_that_was_cut_off(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"2"), ("1.txt", b"b"), ("2.cls", b"1"), ("2.txt", b"c")]
    )
    Path(path).write_bytes(Path(path).read_bytes()[: 8 * 512])
    with pytest.raises(FormatError, match=r"sample 0 has no \.txt"):
        WebDatasetReader(path, allow_cut=True)


def told(folder: str, **changes: Any) -> Path:
    """Write an ``_info.json`` of the two shards in `mixed`."""
    split = {"name": "train", "num_samples": 5, "filenames": ["a.tar", "b.tar"], "shard_lengths": [3, 2]}
    path = Path(folder, "_info.json")
    path.write_text(json.dumps({"splits": {"train": {**split, **changes}}}))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shard_lengths": [2, 3]}, r"a\.tar has 3 samples, .*_info\.json says 2"),
        ({"num_samples": 6}, r"_info\.json is damaged.*'train' has 6 samples, and its shards 5"),
        ({"shard_lengths": [3]}, r"_info\.json is damaged.*2 file names and 1 lengths"),
        ({"filenames": ["a.tar", "c.tar"]}, r"c\.tar is not there, and .*_info\.json lists it"),
        ({"filenames": 7}, r"_info\.json is damaged"),
    ],
)
def test_numbers_of_samples_that_differ_from_those_of_info_json_are_an_error(
    mixed: str, changes: dict[str, Any], words: str
) -> None:
    told(mixed)
    assert len(WebDatasetReader(mixed)) == len(WebDatasetReader(f"{mixed}/*.tar")) == 5
    assert len(WebDatasetReader(f"{mixed}/b.tar")) == 2
    assert len(WebDatasetReader(mixed, endings="cls")) == 5
    told(mixed, **changes)
    for source in (mixed, f"{mixed}/*.tar"):
        with pytest.raises(FormatError, match=words):
            WebDatasetReader(source)


def test_damage_of_info_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    from stepwell.testing import tiny_store
    from stepwell.webdataset import write_webdataset

    store = tiny_store(tmp_path / "a.well")
    name = next(name for name, feature in store.schema.items() if feature.kind == "array" and feature.is_raw)
    write_webdataset(store, tmp_path / "shards", features=[name], rename={name: "vec.npy"}, workers=1)
    folder = str(tmp_path / "shards")
    right = WebDatasetReader(folder).schema
    assert set(right) == {"__key__", name}

    def read(path: Path) -> bool:
        return WebDatasetReader(folder).schema == right

    # changes of blanks and the like change nothing
    report = check_damage(Path(folder, "_info.json"), read, count=150, is_right=bool)
    assert report.errors["FormatError"] > 100
    Path(folder, "_info.json").write_bytes(b"")
    with pytest.raises(FormatError, match=r"_info\.json is damaged"):
        stepwell.open(f"webdataset://{folder}")


def test_members_of_json_objects_that_are_left_out_are_named(tmp_path: Path) -> None:
    whole = {"a": 1, "boxes": [1, 2], "at": {"x": 1.5, "y": None}, "kind": "cat"}
    members = [(f"{n:02d}.json", json.dumps(whole if n else {**whole, "more": 3}).encode()) for n in range(20)]
    path = shard(tmp_path / "a.tar", members)
    with pytest.warns(LeftOutWarning) as found:
        reader = WebDatasetReader(path, json="columns")
    texts = sorted(str(warning.message) for warning in found)
    assert len(texts) == 2 and "at.y, boxes left out, which are no numbers or texts" in texts[0]
    assert "more left out, which not all files have" in texts[1]
    assert set(reader.schema) == {"__key__", "a", "at.x", "kind"}
    later = shard(
        tmp_path / "b.tar", [(f"{n:02d}.json", b'{"a": 1}' if n < 19 else b'{"a": 1, "b": 2}') for n in range(20)]
    )
    with pytest.warns(LeftOutWarning, match="b left out"):
        list(WebDatasetReader(later, json="columns").episodes())


def test_shards_of_a_web_server_are_read_in_place_and_imported(mixed: str, tmp_path: Path) -> None:
    with WebServer(mixed) as web:
        source = f"{web.url}/{{a,b}}.tar"
        store = stepwell.open(f"webdataset://{source}")
        assert [episode["cls"][0] for episode in store] == [0, 1, 2, 3, 4]
        convert(source, tmp_path / "a.well", workers=1)
        assert [episode["txt"][0] for episode in stepwell.open(tmp_path / "a.well")] == [
            f"sämple {n}" for n in range(5)
        ]
        assert web.fetched == ["a.tar", "b.tar"] or sorted(web.fetched) == ["a.tar", "b.tar"]


def test_compressed_shards_are_unpacked_into_the_cache(mixed: str, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, new in (("a", "a.tar.gz"), ("b", "b.tgz")):
        (packed / new).write_bytes(gzip.compress(Path(mixed, f"{name}.tar").read_bytes()))
    with WebServer(packed) as web:
        for source in (str(packed), f"{packed}/{{a.tar.gz,b.tgz}}", f"{web.url}/{{a.tar.gz,b.tgz}}"):
            assert find_reader(source) is WebDatasetReader
            store = stepwell.open(f"webdataset://{source}")
            assert [episode["txt"] for episode in store] == [[f"sämple {n}"] for n in range(5)]
        assert sorted(web.fetched) == ["a.tar.gz", "b.tgz"]
    data = (packed / "a.tar.gz").read_bytes()
    for damaged in (data[:-9], data[:200] + b"x" + data[201:], b"nothing"):
        (packed / "a.tar.gz").write_bytes(damaged)
        with pytest.raises(FormatError, match=r"a\.tar\.gz cannot be unpacked"):
            stepwell.open(f"webdataset://{packed}")
    with pytest.raises(DatasetNotFoundError, match=r"no file at .*none\.tgz"):
        stepwell.open(f"webdataset://{packed}/none.tgz")


def test_shards_in_a_bucket_are_listed_and_read(mixed: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    for path in Path(mixed).iterdir():
        fsspec.filesystem("memory").pipe(f"/bucket/{path.name}", path.read_bytes())
    store = stepwell.open("webdataset://memory://bucket/*.tar")
    assert [episode["cls"][0] for episode in store] == [0, 1, 2, 3, 4]


def test_damaged_shards_are_refused_or_read(mixed: str) -> None:
    def read(path: Path) -> list[Any]:
        return [dict(episode.columns) for episode in WebDatasetReader(str(path)).episodes()]

    report = check_damage(Path(mixed, "a.tar"), read, count=150)
    assert set(report.errors) == {"FormatError"} and report.num_read > 0


def test_a_loader_over_shards_serves_each_sample_once(mixed: str) -> None:
    store = stepwell.open(f"webdataset://{mixed}")
    loader = Loader(store, {"label": "cls", "text": "txt"}, batch_size=2, order="random", seed=1)
    for _ in range(2):
        assert sorted(text for batch in loader for text in batch["text"]) == [f"sämple {n}" for n in range(5)]


def test_a_store_in_the_cache_is_of_the_very_decoder_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard(tmp_path / "a.tar", [("0.txt", b"3")])
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "decoders_of_a_test.py"
    source.write_text("def one(data): return int(data)\ndef two(data): return 2 * int(data)\n")
    module = importlib.import_module(source.stem)
    names = set()
    for name, times in (("one", 1), ("two", 2), ("one", 1)):
        decoders = {"txt": (Array((), "int64"), getattr(module, name))}
        store = stepwell.formats.open_in_place(path, decoders=decoders)
        assert store[0]["txt"].tolist() == [3 * times]
        names.add(store.path)
        assert WebDatasetReader(path, decoders=decoders).identity != WebDatasetReader(path).identity
    assert len(names) == 2
    source.write_text("def one(data): return 10 * int(data)\n")
    importlib.reload(module)
    store = stepwell.formats.open_in_place(path, decoders={"txt": (Array((), "int64"), module.one)})
    assert store[0]["txt"].tolist() == [30]


def test_a_decoder_without_a_name_is_for_imports_alone(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", [("0.txt", b"3")])
    decoders = {"txt": (Array((), "int64"), lambda data: 2 * int(data))}
    with pytest.raises(FormatError, match=r"no other process finds this function.*Define it with def"):
        stepwell.formats.open_in_place(path, decoders=decoders)
    convert(path, tmp_path / "a.well", workers=1, decoders=decoders)
    assert stepwell.open(tmp_path / "a.well")[0]["txt"].tolist() == [6]


def test_new_names_of_endings_that_are_in_no_shard_are_refused(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", [("0.txt", b"3")])
    with pytest.raises(FormatError, match=r"no members of ending 'jpeg' to rename.* There are: txt"):
        WebDatasetReader(path, rename="jpeg=image")
    names = "__key__=key,jpeg=image,txt=text,text=text"
    assert list(WebDatasetReader(path, rename=names, ignore="jpeg").schema) == ["key", "text"]


@pytest.mark.parametrize(
    ("ending", "data", "words"),
    [
        ("cls", [b"1", b"99999999999999999999"], "1.cls, byte .*99999999999999999999 is no int64"),
        ("json", [b'{"a": 1}', b'{"a": 99999999999999999999}'], "99999999999999999999 is no int64"),
        ("json", [b'{"a": 1.5}', b'{"a": 9007199254740993}'], "'a' is 9007199254740993, which is no float64"),
    ],
)
def test_numbers_that_no_feature_holds_are_refused(tmp_path: Path, ending: str, data: list[bytes], words: str) -> None:
    path = shard(tmp_path / "a.tar", [(f"{number}.{ending}", part) for number, part in enumerate(data)])
    with pytest.raises(FormatError, match=words):
        stepwell.open(f"webdataset://{path}?json=columns")
    with pytest.raises(FormatError, match=words):
        WebDatasetReader(path, json="columns")[1]


def write_either(path: Path, both: bool = False) -> tuple[str, list[Any]]:
    """Return a shard of samples with a .jpg or a .png, and their pictures."""
    pictures = [picture(number) for number in range(4)]
    members = []
    for number, pixels in enumerate(pictures):
        for ending, codec in (("jpg", "jpeg"), ("png", "png")):
            if both or (number % 2 == 0) == (ending == "jpg"):
                data = make_codec(Image(pixels.shape, codec=codec)).encode(pixels)
                members.append((f"{number}.{ending}", bytes(data)))
        members.append((f"{number}.cls", b"%d" % number))
    return shard(path, members), pictures


def test_images_of_several_endings_and_one_new_name_are_one_feature(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    pytest.importorskip("imagecodecs")
    path, pictures = write_either(tmp_path / "a.tar")
    rename = "jpg=image,png=image"
    convert(path, tmp_path / "a.well", workers=0, rename=rename)
    for store in (stepwell.open(tmp_path / "a.well"), stepwell.open(f"webdataset://{path}?rename={rename}")):
        assert [int(episode["cls"][0]) for episode in store] == [0, 1, 2, 3]
        for number, (episode, pixels) in enumerate(zip(store, pictures, strict=True)):
            assert np.abs(episode["image"][0].astype(int) - pixels).max() <= (0 if number % 2 else 24)
    assert stepwell.open(tmp_path / "a.well").schema["image"] == Image((24, 32, 3), codec="image-file")
    reader = WebDatasetReader(path, rename=rename)
    assert [len(episode.columns["image"]) for episode in reader.episodes()] == [1, 1, 1, 1]


def test_a_sample_with_two_images_of_one_new_name_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    path, _ = write_either(tmp_path / "a.tar", both=True)
    with pytest.raises(FormatError, match=r"the sample of 0\.png has two members of jpg, png, whose new name is one"):
        WebDatasetReader(path, rename="jpg=image,png=image")
    assert len(WebDatasetReader(path, rename="jpg=image")) == 4


def test_where_every_sample_lacks_something_it_is_told_and_how_to_take_either(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    path, _ = write_either(tmp_path / "a.tar")
    with pytest.raises(FormatError, match=r'has either, rename="jpg=image,png=image" makes one feature'):
        WebDatasetReader(path)
    with pytest.raises(
        FormatError, match=r"no sample has a member of each of \.jpg, \.cls, \.png,.*rename=\"jpg=image"
    ):
        WebDatasetReader(path, allow_missing=True)


def test_images_have_the_channels_that_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    pixels = np.concatenate([picture(1), np.full((24, 32, 1), 7, np.uint8)], -1)
    path = shard(tmp_path / "a.tar", [("0.png", bytes(make_codec(Image(pixels.shape, codec="png")).encode(pixels)))])
    assert WebDatasetReader(path).schema["png"].shape == (24, 32, 4)
    convert(path, tmp_path / "a.well", workers=0, channels=3)
    for store in (stepwell.open(tmp_path / "a.well"), stepwell.open(f"webdataset://{path}?channels=3")):
        assert (store[0]["png"][0] == picture(1)).all()


def test_the_first_images_of_8_and_of_16_bits_are_named(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    members = [
        (f"{number}.png", bytes(make_codec(Image((4, 5, 1), dtype, codec="png")).encode(np.zeros((4, 5, 1), dtype))))
        for number, dtype in enumerate(("uint8", "uint8", "uint16"))
    ]
    with pytest.raises(FormatError, match=r"\(\S*a\.tar: 0\.png, byte 512 has 8, \S*a\.tar: 2\.png, byte \d+ has 16\)"):
        WebDatasetReader(shard(tmp_path / "a.tar", members))
