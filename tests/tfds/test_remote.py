"""Datasets of other machines: the same episodes as of this one's files, each fetched once, within a bounded cache."""

import gzip
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from made_sets import FLOATS, TEXT, doubled, episode, simple_tree, write_set
from remote_sets import GRACE, fetched, in_memory, kept, own_cache
from web_server import WebServer

import stepwell
from stepwell import Loader, convert
from stepwell.cli.main import main
from stepwell.errors import DatasetNotFoundError, FormatError, StepwellError
from stepwell.formats import find_reader
from stepwell.references import remote_files
from stepwell.tfds import write_rlds
from stepwell.tfds.features import Fields, Leaf
from stepwell.tfds.reader import TfdsReader

NUM_SHARDS, NUM_EPISODES = 6, 4


@pytest.fixture
def cache(tmp_path):
    with own_cache(tmp_path / "cache") as patch:
        yield patch


@pytest.fixture
def folder(tmp_path, cache):
    """A dataset of shards whose episodes say by their values which they are, some kB each."""
    shards = [
        [
            episode(3, 100 * (shard * NUM_EPISODES + n), **{"steps/depth": [bytes([shard, n]) * 2400] * 3})
            for n in range(NUM_EPISODES)
        ]
        for shard in range(NUM_SHARDS)
    ]
    tree = simple_tree(depth=Leaf("tensor", "uint8", (40, 120), "bytes"))
    return write_set(tmp_path / "web", tree, {"train": shards, "val": shards[:1]})


@pytest.fixture
def web(tmp_path, folder):
    with WebServer(tmp_path / "web") as server:
        yield server


def address(web):
    return f"{web.url}/made/1.0.0"


def shards_of(*numbers):
    return [f"made-train.tfrecord-{number:05d}-of-{NUM_SHARDS:05d}" for number in numbers]


def numbers_of(store):
    return [int(found["action"][0, 0]) // 100 for found in store]


def assert_same(one, other):
    assert [(n, f.shape, f.dtype) for n, f in one.schema.items()] == [
        (n, f.shape, f.dtype) for n, f in other.schema.items()
    ]
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert (a.metadata, a.terminated, a.truncated, a.length) == (b.metadata, b.terminated, b.truncated, b.length)
        assert all(np.array_equal(a[name], b[name]) for name in one.schema)


REAL = {
    "steps": ("rlds", "tfrecord/mini_rlds/1.2.3", "train+val"),
    "shards of steps": ("rlds", "tfrecord_3shards/mini_rlds_sharded/1.2.3", "train"),
    "array_record of steps": ("rlds", "array_record/mini_rlds/1.2.3", "train[1:]"),
    "images": ("images", "tfrecord/mini_images/1.0.0", "train[:50%]+val"),
    "array_record of images": ("images", "array_record/mini_images/1.0.0", "val"),
}


@pytest.mark.parametrize("kind", ["web", "memory"])
@pytest.mark.parametrize("name", REAL)
def test_what_tfds_wrote_is_the_same_from_another_machine(request, cache, tmp_path, name, kind):
    pytest.importorskip("simplejpeg")
    which, place, split = REAL[name]
    if "array_record" in name:
        pytest.importorskip("array_record")
    root = request.getfixturevalue(f"{'image' if which == 'images' else which}_sets")
    local = stepwell.open(f"tfds://{root / place}", split=split)
    with WebServer(root / place) as web:
        source = web.url if kind == "web" else in_memory(root / place, f"real {name}")
        assert_same(local, stepwell.open(f"tfds://{source}", split=split))
        convert(source, tmp_path / "a.well", reader="rlds", split=split, workers=1, progress=False)
    assert_same(local, stepwell.open(tmp_path / "a.well", mode="r"))


def test_what_write_rlds_wrote_is_read_back_from_a_bucket(cache, tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"action": stepwell.Array(2), "note": stepwell.Text()})
    with store.writer() as writer:
        for length in range(1, 9):
            writer.add_episode(
                {"action": np.full((length, 2), length, np.float32), "note": ["ä"] * length}, terminated=True
            )
    write_rlds(store, tmp_path / "out", name="arm", config="wide", workers=1)
    there = stepwell.open(f"rlds://{in_memory(tmp_path / 'out', 'written')}/arm")
    assert [(len(found["note"]), found["action"][0, 0], found["note"][0]) for found in there] == [
        (n, n, "ä") for n in range(1, 9)
    ]


def test_in_place_each_file_is_fetched_once_and_read_where_it_is(web):
    store = stepwell.open(f"tfds://{address(web)}")
    assert numbers_of(store) == list(range(NUM_SHARDS * NUM_EPISODES))
    assert store.schema["depth"].codec == "file-span"
    loader = Loader(store, {"depth": "depth", "action": "action"}, batch_size=9, order="random", threads=1)
    for batch in loader:
        numbers = (batch["action"][:, 0] // 100).astype(int)
        assert (batch["depth"][:, 0, 0] == numbers // NUM_EPISODES).all()
        assert (batch["depth"][:, 0, 1] == numbers % NUM_EPISODES).all()
    assert sorted(fetched(web)) == shards_of(*range(NUM_SHARDS))
    web.fetched.clear()
    assert stepwell.open(f"tfds://{address(web)}").path == store.path and fetched(web) == []


def test_of_a_slice_only_the_files_that_hold_it_are_fetched(web, tmp_path):
    for split, shards in {"train[5:9]": [1, 2], "train[-1:]+train[:1]": [5, 0], "train[3shard]": [3]}.items():
        with own_cache(tmp_path / f"cache {split}"):
            web.fetched.clear()
            store = stepwell.open(f"tfds://{address(web)}", split=split)
            assert sorted(fetched(web)) == sorted(shards_of(*shards))
            web.fetched.clear()
        with own_cache(tmp_path / f"another {split}"):
            convert(address(web), tmp_path / f"{split}.well", split=split, workers=1, progress=False)
            assert sorted(fetched(web)) == sorted(shards_of(*shards))
        assert_same(store, stepwell.open(tmp_path / f"{split}.well", mode="r"))


def test_a_version_of_a_server_is_found_by_looking_and_nothing_is_asked(web):
    assert find_reader("https://nowhere.invalid/arm/1.0.0") is find_reader("gs://nowhere/arm/1.0.0") is TfdsReader
    assert web.fetched == []


def allow_shards(cache, folder, count):
    size = max(path.stat().st_size for path in folder.glob("*-train*"))
    cache.setenv("STEPWELL_CACHE_BYTES", str(count * size + 2000))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_import_fetches_each_file_once_though_the_cache_holds_few(web, folder, tmp_path, cache, workers):
    allow_shards(cache, folder, 2 * workers)
    cache.setattr(remote_files, "GRACE_SECONDS", 5.0)
    report = convert(address(web), tmp_path / "a.well", workers=workers, progress=False)
    assert report.num_episodes == NUM_SHARDS * NUM_EPISODES
    assert sorted(fetched(web)) == shards_of(*range(NUM_SHARDS))
    assert_same(stepwell.open(f"tfds://{folder}"), stepwell.open(tmp_path / "a.well", mode="r"))


def test_what_is_fetched_makes_room_for_what_comes(web, folder, cache):
    allow_shards(cache, folder, 2)
    reader, seen = TfdsReader(address(web)), []
    reader.prepare(np.arange(len(reader)))
    for data in reader.episodes():
        seen.append(int(data.columns["action"][0, 0]) // 100)
        time.sleep(2 * GRACE)
        # one that comes may have passed one that was given up
        assert len(kept()) <= 3
    assert seen == list(range(NUM_SHARDS * NUM_EPISODES)) and sorted(fetched(web)) == shards_of(*range(NUM_SHARDS))


def test_with_room_for_nothing_it_is_read_all_the_same(web, tmp_path, cache):
    cache.setenv("STEPWELL_CACHE_BYTES", "1")
    cache.setattr(remote_files, "GRACE_SECONDS", 0.0)
    store = stepwell.open(f"tfds://{address(web)}")
    # what is fetched ahead may go before it is opened
    assert set(fetched(web)) == set(shards_of(*range(NUM_SHARDS))) and len(kept()) <= 2
    assert numbers_of(store) == list(range(NUM_SHARDS * NUM_EPISODES))
    convert(address(web), tmp_path / "a.well", workers=1, progress=False)
    assert_same(store, stepwell.open(tmp_path / "a.well", mode="r"))


def test_a_connection_that_breaks_off_is_gone_on_with(web):
    web.cut_bytes = 3000
    assert numbers_of(stepwell.open(f"tfds://{address(web)}")) == list(range(NUM_SHARDS * NUM_EPISODES))
    assert len(fetched(web)) == NUM_SHARDS + 1


def test_secrets_of_an_address_are_told_nowhere(web, folder, capsys):
    source = f"{address(web)}?token=SECRET"
    store = stepwell.open(f"tfds://{source}", split="train[:1shard]")
    assert store.path.name.startswith("1.0.0-") and "SECRET" not in f"{store.path}{store!r}"
    path = folder / shards_of(0)[0]
    path.write_bytes(path.read_bytes() + b"x")
    remote_files._STATES.clear()
    report = store.verify()
    assert [finding.file for finding in report.findings] == [f"{address(web)}/{shards_of(0)[0]}"]
    for verb in ("info", "verify"):
        assert main([verb, f"tfds://{source}"]) == 1
    told = json.loads((folder / "dataset_info.json").read_text())
    told["splits"][0]["shardLengths"][1] = 10**9
    (folder / "dataset_info.json").write_text(json.dumps(told))
    remote_files._STATES.clear()
    with pytest.raises(FormatError, match=rf"{shards_of(1)[0]}: {10**9} records by dataset_info") as error:
        stepwell.open(f"tfds://{source}", split="train[1shard]")
    assert "SECRET" not in f"{report}{error.value}{capsys.readouterr()}"


def test_a_server_that_fails_between_is_asked_again_and_told_of_when_it_stays_so(web):
    reader = TfdsReader(address(web))
    web.statuses = [503, 500]
    assert reader[0].columns["action"].shape == (3, 2)
    web.statuses = [503] * 100
    with pytest.raises(DatasetNotFoundError, match=r"00001-of-00006 cannot be fetched: status 503"):
        reader[NUM_EPISODES]
    web.statuses = []
    assert reader[NUM_EPISODES].columns["action"][0, 0] == 100 * NUM_EPISODES


def test_a_missing_file_is_named_before_anything_is_fetched(web, folder):
    (folder / shards_of(4)[0]).unlink()
    for make in (TfdsReader, lambda source: stepwell.open(f"tfds://{source}")):
        with pytest.raises(DatasetNotFoundError, match=r"no file at .*-00004-of-00006 \(status 404\)"):
            make(address(web))
    with pytest.raises(DatasetNotFoundError, match=r"00004-of-00006 .*dataset_info\.json names it: .*another split"):
        TfdsReader(address(web))
    assert fetched(web) == []
    assert len(TfdsReader(address(web), split="train[:4shard]")) == 4 * NUM_EPISODES


def test_a_damaged_file_is_named_by_its_address(web, folder, tmp_path):
    path = folder / shards_of(2)[0]
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    told = rf"{address(web)}/{shards_of(2)[0]}: record 3, byte \d+: .*CRC says.*What was fetched is (.*): remove it to "
    with pytest.raises(FormatError, match=told) as caught:
        stepwell.open(f"tfds://{address(web)}")
    assert Path(re.search(told, str(caught.value))[1]).read_bytes() == data, "the file itself, and no other"
    with pytest.raises(StepwellError, match=told):
        convert(address(web), tmp_path / "a.well", workers=1, progress=False)
    # and one that has other numbers of records
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(FormatError, match=rf"{shards_of(2)[0]}: \d+ records, by {address(web)}/dataset_info\.json 4"):
        list(TfdsReader(address(web), verify=False).episodes())


def test_a_file_that_changed_after_it_was_asked_about_is_an_error(web, folder):
    reader = TfdsReader(address(web))
    path = folder / shards_of(1)[0]
    path.write_bytes(path.read_bytes() * 2)
    assert reader[0]
    with pytest.raises(FormatError, match=r"00001-of-00006 changed while it was in use"):
        reader[NUM_EPISODES]


def test_a_length_that_no_file_holds_is_refused(web, folder):
    record = json.loads((folder / "dataset_info.json").read_text())
    record["splits"][0]["shardLengths"][0] = str(2**61)
    (folder / "dataset_info.json").write_text(json.dumps(record))
    with pytest.raises(FormatError, match=rf"{2**61} records by dataset_info\.json, in a file of"):
        TfdsReader(address(web))
    assert fetched(web) == []


def test_files_without_told_lengths_are_fetched_to_be_counted(web, folder):
    record = json.loads((folder / "dataset_info.json").read_text())
    record["splits"] = [{"name": "val", "numShards": 1}]
    (folder / "dataset_info.json").write_text(json.dumps(record))
    assert numbers_of(stepwell.open(f"tfds://{address(web)}", split="val[1:]")) == [1, 2, 3]


def compress(folder, *numbers):
    for name in shards_of(*numbers):
        (folder / name).write_bytes(gzip.compress((folder / name).read_bytes()))


def test_files_that_are_compressed_are_copied_and_imported(web, folder, tmp_path):
    compress(folder, *range(NUM_SHARDS))
    store = stepwell.open(f"tfds://{address(web)}")
    assert store.schema["depth"].codec != "file-span" and numbers_of(store) == list(range(NUM_SHARDS * NUM_EPISODES))
    convert(address(web), tmp_path / "a.well", workers=1, progress=False)
    assert_same(store, stepwell.open(tmp_path / "a.well", mode="r"))


@pytest.mark.parametrize("options", [{}, {"transform": doubled}], ids=["blocks", "episodes"])
def test_files_some_of_which_are_compressed_are_refused_in_place_and_imported(web, folder, tmp_path, options):
    compress(folder, 3)
    with pytest.raises(StepwellError, match=r"00003-of-00006 is compressed, and others are not"):
        stepwell.open(f"tfds://{address(web)}", **options)
    convert(address(web), tmp_path / "a.well", workers=1, progress=False, **options)
    assert len(stepwell.open(tmp_path / "a.well", mode="r")) == NUM_SHARDS * NUM_EPISODES


def test_pictures_of_sizes_that_are_not_told_are_looked_at_in_all_files(cache, tmp_path):
    pytest.importorskip("simplejpeg")
    from stepwell.codecs import make_codec

    encode = make_codec(stepwell.Image((None, None, 3), codec="jpeg")).encode
    tree = Fields({"image": Leaf("image", "uint8", (None, None, 3)), "label": FLOATS})
    sizes = {"alike": [8] * 5, "other": [8, 8, 8, 8, 16]}
    for name, sides in sizes.items():
        shards = [
            [{"image": [encode(np.full((side, 8, 3), side, np.uint8))], "label": np.ones(2, np.float32)}]
            for side in sides
        ]
        write_set(tmp_path / "web", tree, {"train": shards}, name=name)
    with WebServer(tmp_path / "web") as web:
        shapes = [stepwell.open(f"tfds://{web.url}/{name}/1.0.0").schema["image"].shape for name in sizes]
        assert shapes == [(8, 8, 3), (None, None, 3)]
        # once each for looking and for reading
        assert len(fetched(web)) == 10


def test_names_of_classes_come_along_and_may_be_missing(cache, tmp_path):
    tree = Fields({"label": Leaf("label", "int64", num_classes=2), "text": TEXT})
    path = write_set(tmp_path / "web", tree, {"train": [[{"label": np.array([1]), "text": [b"a"]}]]})
    with WebServer(tmp_path / "web") as web:
        assert TfdsReader(address(web)).metadata["tfds"]["labels"] == {}
        before = stepwell.open(f"tfds://{address(web)}")
        (path / "label.labels.txt").write_text("cat\ndog\n")
        assert TfdsReader(address(web)).metadata["tfds"]["labels"] == {"label": ["cat", "dog"]}
        assert stepwell.open(f"tfds://{address(web)}").path != before.path


def test_options_in_the_query_of_an_address_are_refused_by_where_they_belong(web):
    for source in (address(web), "memory://bucket/made"):
        with pytest.raises(FormatError, match=r"made.* stepwell\.open\(address, split='val'\), or --with split=val\."):
            stepwell.open(f"tfds://{source}?token=1&split=val")
    assert len(TfdsReader(f"{address(web)}?token=1")) == NUM_SHARDS * NUM_EPISODES


def test_nothing_may_be_asked_for(web):
    assert len(stepwell.open(f"tfds://{address(web)}", split="train[:0]")) == 0 and fetched(web) == []


def test_the_commands_take_addresses(web, tmp_path, capsys):
    target = tmp_path / "a.well"
    assert (
        main(["convert", address(web), str(target), "--from", "rlds", "--with", "split=train[:5]", "--workers", "1"])
        == 0
    )
    assert sorted(fetched(web)) == shards_of(0, 1) and len(stepwell.open(target, mode="r")) == 5
    assert main(["info", f"tfds://{address(web)}"]) == 0
    assert "24 episodes" in capsys.readouterr().out
    assert main(["convert", f"{web.url}/none/1.0.0", str(tmp_path / "b.well")]) != 0
    assert "no TFDS dataset at" in capsys.readouterr().err
