"""Which files an archive has: as Python's tarfile lists them, and what is no archive is refused."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shards import write_tar  # type: ignore[import-not-found]
from web_server import WebServer

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.testing import check_damage
from stepwell.webdataset import read_tar_index

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
names = st.text(st.sampled_from("ab/.é_ "), min_size=1, max_size=240).filter(
    lambda name: name.strip("/") and not name.endswith("/")
)


def assert_as_tarfile(path: Path) -> None:
    index = read_tar_index(str(path))
    with tarfile.open(path) as archive:
        wanted = [(entry.name, entry.offset_data, entry.size) for entry in archive if entry.isreg()]
    assert list(zip(index.names, index.offsets.tolist(), index.sizes.tolist(), strict=True)) == wanted
    data = path.read_bytes()
    assert all(data[place + 257 : place + 262] == b"ustar" for place in index.headers.tolist())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(names, st.integers(0, 1500)), max_size=12), st.sampled_from(["gnu", "pax"]))
def test_archives_are_listed_as_tarfile_does(tmp_path: Path, members: list[tuple[str, int]], kind: str) -> None:
    path = write_tar(tmp_path / "a.tar", [(name.lstrip("/"), bytes(size)) for name, size in members], FORMATS[kind])
    assert_as_tarfile(path)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [0, 1, 512, 30_000])
def test_many_files_large_and_small_are_listed(tmp_path: Path, kind: str, size: int) -> None:
    members = [(f"{'deep/' * 25}{n:06d}.jpg", bytes(size + n % 3)) for n in range(300)]
    assert_as_tarfile(write_tar(tmp_path / "a.tar", members, FORMATS[kind]))


def test_directories_links_and_times_of_pax_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for kind, name in ((tarfile.DIRTYPE, "set"), (tarfile.SYMTYPE, "set/link"), (tarfile.FIFOTYPE, "pipe")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, "x" * 150, 0
            archive.addfile(entry)
        entry = tarfile.TarInfo("set/0.txt")
        entry.size, entry.mtime = 3, 1.25
        archive.addfile(entry, io.BytesIO(b"abc"))
    assert read_tar_index(str(tmp_path / "a.tar")).names == ["set/0.txt"]
    assert_as_tarfile(tmp_path / "a.tar")


def test_sizes_beyond_octal_digits_and_in_pax_records_are_read(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("a.bin")
    entry.size = 9 << 30
    for kind in ("gnu", "pax"):
        head = entry.tobuf(FORMATS[kind], "utf-8", "strict")
        with (tmp_path / "a.tar").open("wb") as file:
            file.write(head)
            file.truncate(len(head) + entry.size)
            file.seek(0, io.SEEK_END)
            file.write(bytes(1024))
        index = read_tar_index(str(tmp_path / "a.tar"))
        assert (index.names, index.sizes.tolist(), index.offsets.tolist()) == (["a.bin"], [9 << 30], [len(head)])


@pytest.mark.parametrize("place", [700, 1024, 1024 + 100, 2048, 2048 + 512])
def test_an_archive_that_was_cut_off_is_refused_with_the_byte(tmp_path: Path, place: int) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x" * 300) for n in range(3)])
    path.write_bytes(path.read_bytes()[:place])
    with pytest.raises(FormatError, match=rf"a.tar is cut off: it ends at byte {place}"):
        read_tar_index(str(path))
    assert read_tar_index(str(path), allow_cut=True).names == ["0.txt", "1.txt", "2.txt"][: (place + 212) // 1024]


def test_one_block_of_zeros_is_an_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"x")])
    path.write_bytes(path.read_bytes()[: 1024 + 512])
    assert read_tar_index(str(path)).names == ["0.txt"]


@pytest.mark.parametrize("kind", FORMATS)
def test_zeros_over_any_header_but_the_first_after_them_are_refused_or_lose_no_file(tmp_path: Path, kind: str) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x" * 700 * n) for n in range(12)], FORMATS[kind])
    data, headers = path.read_bytes(), read_tar_index(str(path)).headers.tolist()
    for place in range(0, headers[-1], 512):
        for size in (512, 4096):
            stop = min(place + size, headers[-1])
            path.write_bytes(data[:place] + bytes(stop - place) + data[stop:])
            if any(place <= header < stop for header in headers):
                with pytest.raises(FormatError, match=r"byte \d+: the archive goes on behind the mark of its end"):
                    read_tar_index(str(path), allow_cut=True)
            else:
                assert len(read_tar_index(str(path))) == 12


def test_archives_that_were_joined_are_refused(tmp_path: Path) -> None:
    parts = [write_tar(tmp_path / f"{n}.tar", [(f"{n}.txt", b"x")]).read_bytes() for n in range(2)]
    path = tmp_path / "a.tar"
    path.write_bytes(parts[0] + parts[1])
    for allow_cut in (False, True):
        with pytest.raises(FormatError, match=rf"a\.tar, byte {len(parts[0])}: .*name each as a shard"):
            read_tar_index(str(path), allow_cut=allow_cut)


def test_an_archive_whose_rest_was_never_written_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x" * 300) for n in range(30)])
    data = path.read_bytes()
    path.write_bytes(data[:8192] + bytes(len(data) - 8192))
    with pytest.raises(FormatError, match=r"only zeros from byte 8192 .*allow_cut=True"):
        read_tar_index(str(path))
    index = read_tar_index(str(path), allow_cut=True)
    assert index.is_cut and len(index) == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:600] + b"\xff" + data[601:], None),
        (lambda data: data[:1030] + b"!" + data[1031:], "byte 1024: no tar header, or one with another checksum"),
        (lambda data: b"\x1f\x8b" + data, "is compressed .gzip."),
        (lambda data: b"hello" * 300, "byte 0: no tar header"),
        (lambda data: b"", "is cut off"),
    ],
)
def test_damage_is_named(tmp_path: Path, change: object, words: str | None) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"x" * 300), ("1.txt", b"y" * 300)])
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    if words is None:
        assert len(read_tar_index(str(path))) == 2
        return
    with pytest.raises(FormatError, match=words):
        read_tar_index(str(path))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ((124, 136), b"9" * 12, "a size that is none"),
        ((124, 136), b"\xff" * 12, "a size that is none"),
        ((156, 157), b"S", "a sparse file"),
        ((156, 157), b"x", "pax record that is none"),
        ((0, 5), b"\xff.txt", "is not UTF-8"),
    ],
)
def test_headers_that_cannot_be_are_named(tmp_path: Path, field: tuple[int, int], value: bytes, words: str) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"x" * 300)])
    data = bytearray(path.read_bytes())
    data[slice(*field)] = value
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"byte 0: .*{words}"):
        read_tar_index(str(path))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"no file at .*none\.tar"):
        read_tar_index(str(tmp_path / "none.tar"))
    with WebServer(tmp_path) as web, pytest.raises(DatasetNotFoundError, match=r"no file at .*none\.tar"):
        read_tar_index(f"{web.url}/none.tar")


def test_damaged_archives_are_refused_or_read(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", [(f"{'k' * 120}{n}.bin", bytes([n]) * 40 * n) for n in range(20)], FORMATS["pax"]
    )
    report = check_damage(path, lambda copy: read_tar_index(str(copy)), count=300)
    assert set(report.errors) == {"FormatError"} and report.num_read > 0


def test_places_are_those_of_the_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blobs = [rng.bytes(int(size)) for size in rng.integers(0, 3000, 50)]
    path = write_tar(tmp_path / "a.tar", [(f"{n}.bin", blob) for n, blob in enumerate(blobs)])
    index, data = read_tar_index(str(path)), path.read_bytes()
    found = [data[start : start + size] for start, size in zip(index.offsets, index.sizes, strict=True)]
    assert found == blobs


def test_a_damaged_archive_of_another_machine_is_named_without_the_secrets_of_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.tar").write_bytes(b"no archive" * 100)
    with WebServer(tmp_path / "web") as web, pytest.raises(FormatError, match=f"{web.url}/a.tar, byte 0") as error:
        read_tar_index(f"{web.url}/a.tar?token=SECRET")
    assert "SECRET" not in str(error.value)
