"""Replay buffers of diffusion policy are read to what was written in them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.errors import FormatError, WorkerError
from stepwell.formats import find_reader, open_reader

pytest.importorskip("zarr")
from reader_sets import write_replay

ENDS = (13, 14, 30, 50)
METADATA = (".zarray", ".zattrs", "zarr.json")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunk", [7, 50, 1])
def test_episodes_are_the_rows_between_ends(tmp_path: Path, zarr_format: int, chunk: int):
    arrays = write_replay(tmp_path / "p.zarr", zarr_format=zarr_format, chunk=chunk)
    reader = open_reader(tmp_path / "p.zarr")
    order = [0, 1, 2, 3, 1, 3, 0]  # forwards, and not
    for index in order:
        start, stop = (0, *ENDS)[index], ENDS[index]
        for name, rows in arrays.items():
            assert np.array_equal(reader[index].columns[name], rows[start:stop])


def test_floats_become_images_where_nothing_is_lost(tmp_path: Path):
    arrays = write_replay(tmp_path / "p.zarr")
    convert(tmp_path / "p.zarr", tmp_path / "a.well", images="uint8", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert str(store.schema["img"]) == "raw 8x8x3 uint8"
    assert np.array_equal(np.concatenate([episode["img"] for episode in store]), arrays["img"])


def test_floats_that_are_no_bytes_are_not_rounded(tmp_path: Path):
    import zarr

    write_replay(tmp_path / "p.zarr")
    zarr.open_group(str(tmp_path / "p.zarr"), mode="a")["data/img"][20, 0, 0, 0] = 0.5
    reader = open_reader(tmp_path / "p.zarr", options={"images": "uint8"})
    with pytest.raises(FormatError, match=r"p.zarr, rows 14 to 30 of data/img: values that are no whole numbers"):
        reader[2]


def test_a_zip_is_read_in_place(tmp_path: Path):
    arrays = write_replay(tmp_path / "p.zarr")
    shutil.make_archive(str(tmp_path / "q.zarr"), "zip", tmp_path / "p.zarr")
    assert find_reader(tmp_path / "q.zarr.zip").name == "zarr"
    store = stepwell.open(f"zarr://{tmp_path / 'q.zarr.zip'}", cache=tmp_path / "cache")
    assert np.array_equal(store[2]["state"], arrays["state"][14:30])


@pytest.mark.parametrize("ends", [(13, 13, 50), (13, 9, 50), (13, 14, 49)])
def test_ends_that_do_not_fit_are_told(tmp_path: Path, ends: tuple[int, ...]):
    import zarr

    write_replay(tmp_path / "p.zarr", ends=(13, 14, 50))
    zarr.open_group(str(tmp_path / "p.zarr"), mode="a")["meta/episode_ends"][...] = np.array(ends)
    with pytest.raises(FormatError, match="episode_ends"):
        open_reader(tmp_path / "p.zarr")


def test_an_array_without_a_row_a_step_is_told(tmp_path: Path):
    import zarr

    root = zarr.open_group(tmp_path / "set.zarr", mode="w")
    root.create_array("data/action", data=np.zeros((5, 2)))
    root.create_array("data/rate", data=np.float32(10.0).reshape(()))
    root.create_array("meta/episode_ends", data=np.array([5]))
    with pytest.raises(FormatError, match=r"data/rate has shape \(\), .*episode_ends ends with 5"):
        open_reader(tmp_path / "set.zarr")
    assert list(open_reader(f"zarr://{tmp_path}/set.zarr?ignore=rate").schema) == ["action"]
    with pytest.raises(FormatError, match=r"ignore=\['nope'\]: .* has action, rate"):
        open_reader(tmp_path / "set.zarr", options={"ignore": ["nope"]})


def test_a_damaged_chunk_is_told(tmp_path: Path):
    write_replay(tmp_path / "p.zarr")
    chunks = [path for path in (tmp_path / "p.zarr/data/img").iterdir() if path.name[0].isdigit()]
    assert chunks
    for path in chunks:
        path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FormatError, match=r"chunk data/img/\d\.0\.0\.0 has 20 bytes"):
        open_reader(tmp_path / "p.zarr")[0]


def test_arrays_in_groups_are_dotted_features(tmp_path: Path):
    import zarr

    write_replay(tmp_path / "p.zarr")
    root = zarr.open_group(str(tmp_path / "p.zarr"), mode="a")
    depth = np.arange(50 * 6, dtype=">u2").reshape(50, 2, 3)
    made = root["data"].create_group("obs").create_array("depth", shape=depth.shape, chunks=(9, 2, 3), dtype=">u2")
    made[...] = depth
    reader = open_reader(tmp_path / "p.zarr")
    assert reader.schema["obs.depth"].np_dtype == np.dtype("<u2")
    assert np.array_equal(reader[2].columns["obs.depth"], depth[14:30])


def test_values_that_are_no_numbers_stay_where_they_are_kept(tmp_path: Path):
    import zarr

    write_replay(tmp_path / "p.zarr")
    zarr.open_group(str(tmp_path / "p.zarr"), mode="a")["data/img"][20, 0, 0, 0] = np.nan
    assert np.isnan(open_reader(tmp_path / "p.zarr")[2].columns["img"][6, 0, 0, 0])
    with pytest.raises(FormatError, match="no whole numbers"):
        open_reader(tmp_path / "p.zarr", options={"images": "uint8"})[2]


def test_shards_are_read_whole(tmp_path: Path):
    import zarr

    write_replay(tmp_path / "p.zarr", zarr_format=3)
    root = zarr.open_group(str(tmp_path / "p.zarr"), mode="a")
    rows = np.arange(100).reshape(50, 2)
    root["data"].create_array("pair", shape=(50, 2), chunks=(3, 2), shards=(12, 2), dtype="int64")[...] = rows
    reader = open_reader(tmp_path / "p.zarr")
    assert [len(reader[number].columns["pair"]) for number in range(4)] == [13, 1, 16, 20]
    assert np.array_equal(reader[3].columns["pair"], rows[30:])


def test_several_processes_read_it(tmp_path: Path):
    arrays = write_replay(tmp_path / "p.zarr")
    convert(tmp_path / "p.zarr", tmp_path / "a.well", workers=2)
    store = stepwell.open(tmp_path / "a.well")
    assert np.array_equal(np.concatenate([episode["state"] for episode in store]), arrays["state"])


def files_of(array: Path) -> list[Path]:
    return sorted(path for path in array.rglob("*") if path.is_file() and path.name not in METADATA)


@pytest.mark.parametrize("kind", ["v2", "v3", "v3 blosc", "sharded", "zip"])
def test_a_chunk_that_is_missing_or_cut_off_at_any_byte_is_an_error(tmp_path: Path, kind: str):
    import zarr

    path = tmp_path / "p.zarr"
    arrays = write_replay(path, zarr_format=2 if kind in ("v2", "zip") else 3)
    if kind in ("v3 blosc", "sharded"):
        options = {"shards": (14, 2)} if kind == "sharded" else {"compressors": zarr.codecs.BloscCodec()}
        made = zarr.open_group(str(path), mode="a").create_array(
            "data/action", shape=(50, 2), chunks=(7, 2), dtype="f4", overwrite=True, **options
        )
        made[...] = arrays["action"]

    def read() -> list[np.ndarray]:
        source = path
        if kind == "zip":
            source = Path(shutil.make_archive(str(tmp_path / "q.zarr"), "zip", path))
        return [episode.columns["action"] for episode in open_reader(source, "zarr").episodes()]

    right = np.concatenate(read())
    assert np.array_equal(right, arrays["action"])
    for file in (files_of(path / "data" / "action")[1], files_of(path / "meta" / "episode_ends")[-1]):
        data = file.read_bytes()
        for size in range(0, len(data), 7):
            file.write_bytes(data[:size])
            with pytest.raises(FormatError, match=r"p\.zarr|q\.zarr"):
                read()
        file.unlink()
        with pytest.raises(FormatError, match=rf"chunk \S*{file.name} is not there"):
            read()
        file.write_bytes(data)
    assert np.array_equal(np.concatenate(read()), right)


def test_chunks_that_were_left_out_as_they_hold_the_fill_value_are_read_where_that_is_asked_for(tmp_path: Path):
    import zarr

    arrays = write_replay(tmp_path / "p.zarr", zarr_format=3)
    zarr.open_group(str(tmp_path / "p.zarr"), mode="a")["data/state"][7:14] = 0
    with pytest.raises(WorkerError, match=r'missing_chunks="fill"'):
        stepwell.open(f"zarr://{tmp_path / 'p.zarr'}")
    store = stepwell.open(f"zarr://{tmp_path / 'p.zarr'}?missing_chunks=fill")
    wanted = arrays["state"].copy()
    wanted[7:14] = 0
    assert np.array_equal(np.concatenate([episode["state"] for episode in store]), wanted)
    with pytest.raises(FormatError, match="Allowed: error, fill"):
        open_reader(tmp_path / "p.zarr", options={"missing_chunks": "zero"})
