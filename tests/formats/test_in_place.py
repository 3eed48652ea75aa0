"""Data sets of others as stores that refer to their files."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_children
from shard_reader import ShardReader, values_of, write_shards

import stepwell
from stepwell import Field, Loader, View, convert
from stepwell.cli.main import main
from stepwell.errors import (
    DatasetNotFoundError,
    DecodeError,
    EpisodeNotFoundError,
    FormatError,
    LoaderError,
    StepwellError,
    StoreNotFoundError,
)
from stepwell.formats import cache as cache_module
from stepwell.formats import open_in_place
from stepwell.replay import ReplayLoader, Table
from stepwell.sizes import human_bytes
from stepwell.store.info import FilesInPlace
from stepwell.testing import tiny_lerobot
from stepwell.windows import WindowReader

pytest.importorskip("imagecodecs")

LENGTHS = (3, 1, 4, 2, 2, 5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shards(tmp_path: Path, cache: Path) -> Path:
    return write_shards(tmp_path / "set")


def stores_in(cache: Path) -> list[Path]:
    return sorted(cache.glob("shards/*/[!.]*.well"))


def check(store: Any) -> None:
    assert [episode.length for episode in store] == list(LENGTHS)
    for number, episode in enumerate(store):
        images, states, notes = values_of(number, LENGTHS[number])
        np.testing.assert_array_equal(episode["image"], images[: LENGTHS[number] + episode.has_final])
        np.testing.assert_array_equal(episode["state"], states)
        assert episode["note"] == notes
        assert episode["index"].tolist() == [100 * number + step for step in range(LENGTHS[number])]
        assert (episode.terminated, episode.truncated) == (number % 2 == 0, number % 3 == 0)
        assert episode.metadata == {"number": number}


@pytest.mark.parametrize("bulk", [False, True])
def test_a_store_in_place_has_what_an_imported_one_has(shards: Path, tmp_path: Path, bulk: bool) -> None:
    store = open_in_place(shards, bulk=bulk)
    assert (store.mode, store.fps, store.metadata) == ("r", 5.0, {"from": "shards"})
    assert {store.schema[name].codec for name in ("image", "state", "note")} == {"file-span"}
    assert all(episode.has_final != bulk for episode in store) and len(store.segments) == 1
    check(store)
    convert(f"shards://{shards}", tmp_path / "own.well", workers=1)
    own = stepwell.open(tmp_path / "own.well")
    assert own.schema["image"].codec == "png" and own.schema["state"].is_raw
    check(own)


def test_spans_are_stored_by_another_codec_where_it_is_asked_for(shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    convert(shards, tmp_path / "own.well", features={"image": "raw", "state": "zstd", "note": "zstd"}, workers=1)
    own = stepwell.open(tmp_path / "own.well")
    assert own.schema["image"].is_raw and own.schema["state"].codec == own.schema["note"].codec == "zstd"
    check(own)


def test_converted_store_needs_the_files_no_more(shards: Path, tmp_path: Path) -> None:
    stepwell.convert(stepwell.open(f"shards://{shards}"), tmp_path / "own.well", workers=1)
    shutil.rmtree(shards)
    own = stepwell.open(tmp_path / "own.well")
    assert [own.schema[name].codec for name in ("image", "state", "note")] == ["png", "raw", "raw"]
    assert own.schema["state"].is_raw
    check(own)


def test_a_shard_is_a_segment_and_the_store_is_the_same_for_any_number_of_workers(shards: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        convert(shards, tmp_path / f"{workers}.well", workers=workers)
        store = stepwell.open(tmp_path / f"{workers}.well")
        assert [len(segment.records) for segment in store.segments] == [3, 2, 1]
        check(store)
    convert(shards, tmp_path / "some.well", episodes=[1, 2, 4, 5], workers=1)
    assert [len(segment.records) for segment in stepwell.open(tmp_path / "some.well").segments] == [2, 1, 1]


@pytest.mark.parametrize("order", ["sequential", "random", stepwell.pooled("8 KiB", blocks=4)])
@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("bulk", [False, True])
def test_every_order_shows_every_window_as_it_is(shards: Path, order: Any, page_cache: bool, bulk: bool) -> None:
    fields = {"state": Field("state", [-1, 0, 1]), "image": Field("image", [0, 1]), "note": "note"}
    fields |= {"episode": "episode_index", "step": "step_index"}
    seen = []
    for batch in Loader(open_in_place(shards, bulk=bulk), fields, batch_size=4, order=order, page_cache=page_cache):
        for row, (episode, step) in enumerate(zip(batch["episode"], batch["step"], strict=True)):
            images, states, notes = values_of(episode, LENGTHS[episode])
            last = LENGTHS[episode] - 1
            around = np.clip(step + np.arange(-1, 2), 0, last)
            np.testing.assert_array_equal(batch["state"][row], states[around])
            np.testing.assert_array_equal(batch["image"][row], images[[step, min(step + 1, last + (not bulk))]])
            assert batch["note"][row] == notes[step]
            seen.append((episode, step))
    assert sorted(seen) == [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]


def test_the_store_is_found_again_and_made_anew_when_a_file_changed(shards: Path, cache: Path) -> None:
    first = open_in_place(shards)
    before = stores_in(cache)
    assert open_in_place(shards).record.uuid == first.record.uuid and stores_in(cache) == before
    stale = first.path
    first.close()
    del first
    os.utime(shards / "shard-1.bin", ns=(1, 1))
    check(open_in_place(shards))
    assert len(stores_in(cache)) == 1 and stale not in stores_in(cache)


def test_stores_of_other_options_stand_beside_each_other(shards: Path, cache: Path) -> None:
    assert "note" not in open_in_place(shards, notes="no").schema
    assert "note" not in stepwell.open(f"shards://{shards}?notes=no").schema
    assert "note" in stepwell.open(f"shards://{shards}").schema
    assert len(stores_in(cache)) == 2


def test_the_same_data_elsewhere_is_the_same_store_to_a_loader(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "copy")
    assert open_in_place(shards).record.uuid == open_in_place(tmp_path / "copy").record.uuid
    with (tmp_path / "copy" / "shard-2.bin").open("ab") as file:
        file.write(b"more")
    assert open_in_place(shards).record.uuid != open_in_place(tmp_path / "copy").record.uuid


def test_a_relative_path_and_a_list_of_one_are_the_same_data(
    shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shards.parent)
    for source in ("set", ["set"], shards, f"shards://{shards}", "shards://set", "shards://./set"):
        check(open_in_place(source))
    assert len(stores_in(cache)) == 1


def test_two_processes_make_one_store(shards: Path, cache: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import shard_reader, stepwell; "
        f"print(stepwell.open('shards://{shards}')[2]['index'].tolist())"
    )
    running = [warm_children.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["[200, 201, 202, 203]"] * 2
    assert len(stores_in(cache)) == 1


def test_file_that_is_cut_off_or_replaced_while_it_is_read_is_an_error(shards: Path) -> None:
    reader = WindowReader(View(open_in_place(shards)), {"state": Field("state", [0]), "image": Field("image", [0])})
    assert reader.read(np.arange(17))["state"].shape == (17, 1, 4, 3)
    (shards / "new").write_bytes((shards / "shard-0.bin").read_bytes())
    (shards / "new").replace(shards / "shard-0.bin")
    with pytest.raises(LoaderError, match=r"episode 1, step 0.*shard-0\.bin: the file was changed or replaced"):
        reader.read(np.array([3]))
    os.truncate(shards / "shard-2.bin", 30)
    with pytest.raises(LoaderError, match=r"episode 5, step 4.*shard-2\.bin: the file was changed or replaced"):
        reader.read(np.array([16]))
    with pytest.raises(LoaderError, match=r"episode 5, step 4.*shard-2\.bin: the file is another one.*it has 30 bytes"):
        WindowReader(reader.view, {"state": Field("state", [0])}).read(np.array([16]))


def replaced(path: Path) -> None:
    (path.parent / "new").write_bytes(path.read_bytes()[::-1])
    os.utime(path.parent / "new", ns=(0, path.stat().st_mtime_ns + 1))
    (path.parent / "new").replace(path)


def overwritten(path: Path) -> None:
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(b"HEAD")
    os.utime(path, ns=(0, before + 1))


def cut_off(path: Path) -> None:
    before = path.stat().st_mtime_ns
    os.truncate(path, path.stat().st_size - 1)
    os.utime(path, ns=(0, before))


def first_reads(store: Any, target: Path) -> dict[str, Any]:
    """Return ways to read the second episode for the first time."""
    return {
        "episode": lambda: store[1]["image"],
        "plain episode": lambda: store[1]["state"],
        "row": lambda: store[1].read_rows("note", 0, 1),
        "windows": lambda: WindowReader(View(store), {"image": Field("image", [0])}).read(np.array([3])),
        "plain windows": lambda: WindowReader(View(store), {"state": Field("state", [0])}).read(np.array([3])),
        "pool": lambda: list(Loader(store, {"image": "image"}, order=stepwell.pooled("8 KiB", blocks=4))),
        "replay": lambda: next(iter(ReplayLoader(Table(store), {"state": "state"}, batch_size=64))),
        "conversion": lambda: stepwell.convert(store, target, workers=1),
    }


@pytest.mark.parametrize("how", list(first_reads(None, Path())))
@pytest.mark.parametrize("happens", [replaced, overwritten, cut_off])
def test_file_that_is_another_by_its_first_read_is_an_error_and_never_other_data(
    shards: Path, tmp_path: Path, happens: Any, how: str
) -> None:
    store = open_in_place(shards)
    happens(shards / "shard-0.bin")
    with pytest.raises(
        stepwell.StepwellError, match=r"shard-0\.bin: the file is another one.*it had.*Open the data set"
    ):
        first_reads(store, tmp_path / "own.well")[how]()
    np.testing.assert_array_equal(store[3]["state"], values_of(3, 2)[1])


def test_a_store_that_another_process_opened_knows_what_the_files_were(shards: Path) -> None:
    store = pickle.loads(pickle.dumps(open_in_place(shards)))
    overwritten(shards / "shard-2.bin")
    check_whole = [store[number]["state"] for number in range(5)]
    assert len(check_whole) == 5
    with pytest.raises(DecodeError, match=r"shard-2\.bin: the file is another one"):
        store[5]["state"]


def test_files_that_a_reader_does_not_name_are_compared_too(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardReader, "files", classmethod(lambda cls, source, **options: [f"{source}/shards.json"]))
    store = open_in_place(shards)
    overwritten(shards / "shard-0.bin")
    with pytest.raises(DecodeError, match=r"shard-0\.bin: the file is another one"):
        store[0]["state"]


def test_references_of_before_they_knew_states_are_made_anew(
    shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(cache_module, "REFERENCES", b"")
        before.setattr(cache_module, "_noting_states", lambda schema, files: schema)
        old = open_in_place(shards).path
    store = open_in_place(shards)
    assert store.schema["state"].option("states", None) and stores_in(cache) == [store.path] and store.path != old


def test_a_store_is_called_by_its_address(shards: Path) -> None:
    for source, options in ((shards, {"notes": "no"}), (f"shards://{shards}?notes=no", {})):
        store = open_in_place(source, **options)
        address = f"shards://{shards}?notes=no"
        assert store.address == store.name == address and str(store.path).endswith(".well")
        assert repr(store).startswith(f"<Store {address}  6 episodes  17 steps  5 fps  ")
        assert repr(pickle.loads(pickle.dumps(store))) == repr(store)
        assert repr(store[1]).startswith(f"<Episode 1 of {address} ")
        assert repr(View(store)).startswith(f"<View of {address} ")
        with pytest.raises(EpisodeNotFoundError, match=rf"no episode 9\. shards://{shards}.notes=no has 6"):
            store[9]


def test_a_file_address_is_a_path_to_all_that_take_sources(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"file://{shards}".replace("set", "%73et")
    for store in (open_in_place(address), open_in_place([address]), stepwell.open(f"shards://{address}")):
        check(store)
    assert "note" not in stepwell.open(f"shards://{address}?notes=no").schema
    convert(address, tmp_path / "own.well", workers=1)
    check(stepwell.open(tmp_path / "own.well"))
    assert main(["convert", address, str(tmp_path / "other.well"), "--workers", "0"]) == 0
    for verb in ("info", "verify"):
        assert main([verb, f"file://{tmp_path}/other.well"]) == main([verb, f"shards://{address}"]) == 0
    with pytest.raises(StoreNotFoundError, match=f'looks like a data set of shards.*"shards://{shards}"'):
        stepwell.open(address)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["info", "file://data/other.well"])
    assert "is no file of this machine" in capsys.readouterr().err


def test_what_lies_below_a_file_is_not_there(tmp_path: Path, cache: Path) -> None:
    h5py = pytest.importorskip("h5py")
    h5py.File(tmp_path / "x.hdf5", "w").close()
    for place in (f"{tmp_path}/x.hdf5/", f"robomimic://{tmp_path}/x.hdf5/", f"zarr://{tmp_path}/x.hdf5/more"):
        with pytest.raises(StepwellError, match="is not there"):
            open_in_place(place)


def test_what_is_not_there_is_said_before_anything_is_made(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"nowhere/shards\.json is not there"):
        stepwell.open(f"shards://{tmp_path}/nowhere")
    with pytest.raises(FormatError, match="looks like none of them"):
        open_in_place(tmp_path)
    assert not cache.exists()


def test_an_option_that_there_is_not_is_refused_and_one_is_given_once(shards: Path) -> None:
    with pytest.raises(FormatError, match="'shards' has no option 'split'"):
        stepwell.open(f"shards://{shards}?split=train")
    with pytest.raises(FormatError, match="'notes' is given in the address"):
        stepwell.open(f"shards://{shards}?notes=no", notes="yes")
    with pytest.raises(FormatError, match="an address of 'shards', not of 'lerobot'"):
        open_in_place(f"shards://{shards}", reader="lerobot")


def test_a_plain_path_to_data_of_others_is_told_its_address(shards: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=f'looks like a data set of shards.*"shards://{shards}"'):
        stepwell.open(shards)


def test_a_failure_leaves_nothing_that_is_taken_for_a_store(
    shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, index: int) -> Any:
        raise ValueError("not readable")

    with monkeypatch.context() as broken:
        broken.setattr(ShardReader, "__getitem__", fail)
        with pytest.raises(stepwell.WorkerError, match=r"episode 0 of .* cannot be read: not readable"):
            open_in_place(shards)
    assert stores_in(cache) == []
    check(open_in_place(shards))


def test_the_command_looks_at_every_row_of_the_files(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"shards://{shards}", "--deep"]) == 0
    assert "all as written" in capsys.readouterr().out
    data = bytearray((shards / "shard-0.bin").read_bytes())
    data[4 + 30 : 4 + 60] = bytes(30)
    (shards / "shard-0.bin").write_bytes(data)
    assert main(["verify", f"shards://{shards}", "--deep"]) == 1
    assert "image.bin: 1 row cannot be decoded, the first is row 0: " in capsys.readouterr().out


def test_the_table_counts_what_lies_in_the_files(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = open_in_place(shards).info()
    files = sorted(shards.glob("*.bin"))
    assert info.in_place == FilesInPlace(3, sum(file.stat().st_size for file in files))
    rows = {row.name: row for row in info.features}
    heads = len(files) * len(b"head")
    assert sum(row.in_place_bytes or 0 for row in rows.values()) == info.in_place.num_bytes - heads
    assert (rows["state"].in_place_bytes, rows["state"].ratio, rows["index"].in_place_bytes) == (17 * 48, None, None)
    assert rows["image"].ratio == pytest.approx(23 * 576 / (rows["image"].in_place_bytes or 0))
    assert main(["info", f"shards://{shards}"]) == 0
    told = capsys.readouterr().out.splitlines()
    left, own = human_bytes(info.in_place.num_bytes), human_bytes(info.stored_bytes)
    assert told[0].endswith(f"5 fps  {left} in 3 files, in place; {own} in the store>")
    assert told[2].split() == ["state", "file-span", "(4,", "3)", "float32", "816", "B", "in", "place"]
    assert main(["info", f"shards://{shards}", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["in_place"] == {"num_files": 3, "num_bytes": info.in_place.num_bytes}
    assert [row["in_place_bytes"] for row in record["features"]] == [row.in_place_bytes for row in info.features]
    assert (record["ratio"], record["split"]) == (None, None)


def test_a_store_that_needs_no_files_says_nothing_of_them(shards: Path, tmp_path: Path) -> None:
    stepwell.convert(open_in_place(shards), tmp_path / "own.well", workers=1)
    info = stepwell.open(tmp_path / "own.well").info()
    assert info.in_place is None and "in place" not in str(info)


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (overwritten, "shard-1.bin: the file is another one than when references into it were made: it had "),
        (cut_off, "shard-1.bin: the file is another one than when references into it were made: it had "),
        (Path.unlink, "shard-1.bin: there is no such file."),
    ],
)
def test_verifying_compares_the_states_of_files_without_reading_them(
    shards: Path, capsys: pytest.CaptureFixture[str], happens: Any, told: str
) -> None:
    assert main(["verify", f"shards://{shards}"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"shards://{shards}: 1 segment, ")
    assert line.endswith(" compared with checksums, 3 files in place with sizes and times, all as written\n")
    store = open_in_place(shards)
    happens(shards / "shard-1.bin")
    report = store.verify()
    assert (report.num_files, len(report.findings)) == (3, 1) and not report.is_ok
    assert str(report.findings[0]).startswith(str(shards)) and told in str(report.findings[0])
    assert main(["verify", str(store.path)]) == 1
    assert f"  {shards}/{told}" in capsys.readouterr().out
    assert [row["state"].shape for row in (store[0], store[5])] == [(3, 4, 3), (5, 4, 3)]


def test_lerobot_has_its_own_way(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("pyarrow")
    root = tiny_lerobot(tmp_path / "tiny", cameras={}, lengths=[5, 7])
    for source in (root, f"lerobot://{root}"):
        assert [episode.length for episode in open_in_place(source, ignore=["action"])] == [5, 7]
    assert len(list(cache.glob("lerobot/*/*.well"))) == 1
