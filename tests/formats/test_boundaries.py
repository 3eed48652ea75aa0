"""A data set is what lies beneath the directory that its user names: links out of it and FIFOs are refused."""

import os
from pathlib import Path
from typing import Any

import pytest
from shard_reader import write_shards  # type: ignore[import-not-found]

import stepwell
from stepwell import convert
from stepwell.errors import FormatError, StepwellError, UntrustedFileError
from stepwell.formats.registry import readers_of
from stepwell.formats.source_paths import check_boundaries


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    folder: Path = write_shards(tmp_path / "set")
    return folder


def opened(source: Path, **options: Any) -> Any:
    return stepwell.open(f"shards://{source}", **options)[0]["image"]


def imported(source: Path, **options: Any) -> Any:
    target = source.with_name("imported.well")
    return convert(source, target, reader="shards", workers=1, **options)


@pytest.mark.parametrize("read", [opened, imported])
def test_links_that_lead_out_are_refused_until_their_place_is_trusted(shards: Path, tmp_path: Path, read: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    (shards / "shard-1.bin").rename(tmp_path / "elsewhere" / "a.bin")
    (shards / "shard-1.bin").symlink_to(tmp_path / "elsewhere" / "a.bin")
    with pytest.raises(UntrustedFileError, match=r"shard-1\.bin: links of this data set .*elsewhere"):
        read(shards)
    with pytest.raises(UntrustedFileError):
        read(shards, trust=tmp_path / "else")
    read(shards, trust=tmp_path / "elsewhere")


def test_links_within_a_data_set_and_to_one_are_followed(shards: Path, tmp_path: Path) -> None:
    (shards / "below").mkdir()
    (shards / "shard-1.bin").rename(shards / "below" / "a")
    (shards / "shard-1.bin").symlink_to("below/a")
    (shards / "dangling").symlink_to("nothing")
    (shards / "loop").symlink_to("loop")
    (shards / "up").symlink_to(".")
    (tmp_path / "name").symlink_to(shards)
    assert opened(tmp_path / "name").shape == opened(shards).shape


def test_snapshots_of_the_hubs_cache_lead_to_its_blobs_and_nowhere_else(shards: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--me--it" / "snapshots" / "f00", tmp_path / "models--me--it" / "blobs"
    snapshot.parent.mkdir(parents=True)
    blobs.mkdir()
    shards.rename(snapshot)
    for path in sorted(snapshot.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(f"../../blobs/{path.name}")
    opened(snapshot)
    (blobs.parent / "secret").write_bytes(b"")
    (snapshot / "more").symlink_to("../../secret")
    with pytest.raises(UntrustedFileError):
        opened(snapshot)


def test_a_directory_behind_a_link_is_refused_as_a_file_is(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (shards / "pictures").symlink_to(tmp_path / "home")
    with pytest.raises(UntrustedFileError):
        check_boundaries(str(shards))
    check_boundaries(str(shards), trust=True)


@pytest.mark.parametrize("name", ["set", "set/*.bin", "set/{a,fifo}", "set/fifo", "other::set/fifo"])
def test_what_may_never_end_is_refused_however_it_is_named(shards: Path, tmp_path: Path, name: str) -> None:
    os.mkfifo(shards / "fifo")
    if "*" in name:
        (shards / "fifo").rename(shards / "fifo.bin")
    for trust in (None, True):
        with pytest.raises(FormatError, match="FIFO"):
            check_boundaries(f"{tmp_path}/{name}".replace("::", f"::{tmp_path}/"), trust)


def test_a_pattern_fits_links_out_of_its_directory_and_a_name_in_full_is_meant(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"")
    (shards / "shard-9.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(UntrustedFileError):
        check_boundaries(f"{shards}/*.bin")
    check_boundaries(f"{shards}/shard-9.bin")
    check_boundaries(f"{shards}/shard-[0-3].bin")
    check_boundaries(f"file://{shards}/shard-9.bin\nhttps://host/a.tar\n\ns3://b/*.tar")


def test_no_reader_looks_at_a_fifo(tmp_path: Path) -> None:
    for ending in ("", ".hdf5", ".zip", ".parquet", ".arrow", ".tar", ".beton"):
        os.mkfifo(tmp_path / f"fifo{ending}")
        with pytest.raises(FormatError, match="FIFO"):
            readers_of(str(tmp_path / f"fifo{ending}"))
    with pytest.raises(StepwellError):
        stepwell.open(tmp_path / "fifo")


def test_a_store_in_the_cache_is_trusted_by_its_place_alone(shards: Path, tmp_path: Path) -> None:
    store = stepwell.open(f"shards://{shards}")
    assert stepwell.open(store.path, mode="r")[0]["image"].shape == store[0]["image"].shape
    copy = tmp_path / "copy.well"
    os.system(f"cp -r '{store.path}' '{copy}'")
    with pytest.raises(UntrustedFileError, match="trust="):
        stepwell.open(copy)[0]["image"]
    assert stepwell.open(copy, trust=shards)[0]["image"].shape == store[0]["image"].shape
    elsewhere = stepwell.open(f"shards://{shards}", cache=tmp_path / "other")
    assert elsewhere[0]["image"].shape == store[0]["image"].shape
