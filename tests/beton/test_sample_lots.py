import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sample_sets as sets
import warm_children
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_reader import SpecFile

from stepwell import convert
from stepwell.beton.encoding import ArrayEncoder, BytesEncoder, FloatEncoder, ImageEncoder, IntEncoder, JsonEncoder
from stepwell.beton.laying import Target
from stepwell.beton.sample_lots import write_indexed, write_streams
from stepwell.errors import DiskFullError, StepError, StoreExistsError, WorkerError
from stepwell.progress import RateBar
from stepwell.store import open

PAGE = 1 << 16


@pytest.fixture(autouse=True)
def no_process_and_no_hidden_file_is_left_behind(tmp_path):
    yield
    assert multiprocessing.active_children() == []
    assert hidden_files(tmp_path) == []


def hidden_files(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def encoders():
    return {
        "image": ImageEncoder(),
        "int": IntEncoder(),
        "float": FloatEncoder(),
        "bytes": BytesEncoder(),
        "json": JsonEncoder(),
        "array": ArrayEncoder((4, 3), "f4"),
    }


def target(path, *, workers=1, align=1, page_size=PAGE, **options):
    return Target(path, page_size, align, workers, False, start_method="fork", **options)


def assert_same(found, sample):
    for got, value in zip(found.values(), sample, strict=True):
        assert np.array_equal(got, value) if isinstance(value, np.ndarray) else got == value


@pytest.mark.parametrize("align", [1, 8, 64])
def test_samples_come_back_and_the_rules_are_obeyed(tmp_path, align):
    path = tmp_path / "a.beton"
    write_indexed(target(path, align=align), sets.Samples(300), encoders())
    file = SpecFile(path)
    file.check()
    assert file.number == 300
    for index in range(300):
        assert_same(file.sample(index), sets.rich_sample(index))
        assert all(ptr % align == 0 for ptr in file.ptrs(index))


@pytest.mark.parametrize("workers", [2, 5])
def test_the_file_is_the_same_for_every_number_of_workers(tmp_path, workers):
    for name, number, length in (("one", 1, 1 << 30), ("many", workers, 7)):
        options = {"lot_samples": length}
        write_indexed(target(tmp_path / f"{name}.beton", workers=number), sets.Samples(200), encoders(), **options)
    assert (tmp_path / "one.beton").read_bytes() == (tmp_path / "many.beton").read_bytes()


@pytest.mark.usefixtures("spawned_workers")
def test_spawned_workers_write_the_same(tmp_path):
    write_indexed(target(tmp_path / "one.beton"), sets.Samples(), encoders())
    write_indexed(Target(tmp_path / "two.beton", PAGE, 1, 2, False), sets.Samples(), encoders())
    assert (tmp_path / "one.beton").read_bytes() == (tmp_path / "two.beton").read_bytes()


def test_the_reader_imports_what_was_written(tmp_path):
    write_indexed(target(tmp_path / "a.beton", align=8), sets.Samples(40), encoders())
    convert(tmp_path / "a.beton", tmp_path / "a.well", workers=0)
    store = open(tmp_path / "a.well")
    for index, episode in enumerate(store):
        sample = sets.rich_sample(index)
        assert np.array_equal(episode["image"][0], sample[0])
        assert (episode["int"][0], episode["float"][0], episode["bytes"][0]) == sample[1:4]
        assert np.array_equal(episode["array"][0], sample[5])


VALUES = {
    "int": (IntEncoder(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (FloatEncoder(), st.floats(allow_nan=False)),
    "bytes": (BytesEncoder(), st.binary(max_size=40)),
    "json": (JsonEncoder(), st.recursive(st.none() | st.text(max_size=3) | st.booleans(), st.lists, max_leaves=4)),
    "array": (
        ArrayEncoder((2, 3), "i2"),
        st.lists(st.integers(-9, 9), min_size=6, max_size=6).map(lambda v: np.array(v, "i2").reshape(2, 3)),
    ),
    "image": (
        ImageEncoder(),
        st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda s: np.full((*s, 3), sum(s), np.uint8)),
    ),
}


@settings(max_examples=60)
@given(st.data())
def test_any_fields_and_values_come_back(tmp_path_factory, data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=6))
    fields = {f"{kind}_{place}": VALUES[kind][0] for place, kind in enumerate(kinds)}
    samples = data.draw(st.lists(st.tuples(*(VALUES[kind][1] for kind in kinds)), min_size=1, max_size=12))
    path = tmp_path_factory.mktemp("any") / "a.beton"
    write_indexed(target(path, align=data.draw(st.sampled_from([1, 8]))), samples, fields)
    file = SpecFile(path)
    file.check()
    for index, sample in enumerate(samples):
        assert_same(file.sample(index), sample)


def test_a_file_of_numbers_has_no_pages(tmp_path):
    write_indexed(target(tmp_path / "a.beton"), [(1, 2.5), (3, 4.5)], {"a": IntEncoder(), "b": FloatEncoder()})
    assert (tmp_path / "a.beton").stat().st_size == 24 + 2 * 1041 + 2 * 16
    assert SpecFile(tmp_path / "a.beton").sample(1) == {"a": 3, "b": 4.5}


def test_empty_regions_have_a_place_of_their_own(tmp_path):
    values = [b"", b"abc", b"", b"", b"d"]
    write_indexed(target(tmp_path / "a.beton"), [(value,) for value in values], {"a": BytesEncoder()})
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    assert [file.sample(i)["a"] for i in range(5)] == values
    assert len(set(file.table[:, 1].tolist())) == 5


def test_chosen_samples_are_written_in_their_order(tmp_path):
    indices = np.array([7, 3, 3, 50])
    write_indexed(target(tmp_path / "a.beton"), sets.Samples(), encoders(), indices=indices)
    file = SpecFile(tmp_path / "a.beton")
    assert [file.sample(i)["int"] for i in range(4)] == [4, 0, 0, 47]


def test_samples_may_be_mappings_in_any_order(tmp_path):
    samples = [{"b": 2.0, "more": None, "a": 1}]
    write_indexed(target(tmp_path / "a.beton"), samples, {"a": IntEncoder(), "b": FloatEncoder()})
    assert SpecFile(tmp_path / "a.beton").sample(0) == {"a": 1, "b": 2.0}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (sets.RaisingSamples(at=33), r"sample 33 could not be written: ZeroDivisionError(.|\n)*in strange"),
        (sets.ShortSamples(at=33), "sample 33 .*no item 33, although its len\\(\\) is 60"),
        (sets.StoppingSamples(at=33), "sample 33 .*no item 33, although"),
        (sets.FewerValues(at=33), "sample 33 .*it has 5 values, and there are 6 fields"),
        (sets.WrongValues(at=33), "sample 33 .*field 'array': got dtype float64"),
        (sets.RaisingSamples(at=0), "sample 0 could not be written: ZeroDivisionError"),
    ],
)
def test_a_sample_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path, workers, source, message):
    with pytest.raises(WorkerError, match=message):
        write_indexed(target(tmp_path / "a.beton", workers=workers), source, encoders(), lot_samples=4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "how"), [(sets.KilledSamples(at=33), "SIGKILL"), (sets.ExitingSamples(at=33), "exit code 3")]
)
def test_a_worker_that_dies_is_detected_and_its_sample_named(tmp_path, source, how):
    with pytest.raises(WorkerError, match=f"died at item 33 .*{how}"):
        write_indexed(target(tmp_path / "a.beton", workers=2), source, encoders(), lot_samples=4)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_that_is_longer_than_it_says_is_read_as_far_as_it_says(tmp_path):
    class Longer(sets.Samples):
        def __len__(self):
            return 5

    write_indexed(target(tmp_path / "a.beton"), Longer(100), encoders())
    assert SpecFile(tmp_path / "a.beton").number == 5


@pytest.mark.parametrize("source", [[], np.zeros((0, 3))])
def test_no_samples_are_refused(tmp_path, source):
    with pytest.raises(StepError, match="no samples"):
        write_indexed(target(tmp_path / "a.beton"), source, {"a": IntEncoder()})


def test_what_is_no_dataset_is_refused(tmp_path):
    with pytest.raises(StepError, match="a generator"):
        write_indexed(target(tmp_path / "a.beton"), (i for i in range(3)), {"a": IntEncoder()})


def test_a_sample_larger_than_a_page_names_its_sizes_and_the_page_that_it_needs(tmp_path):
    samples = [(bytes(10), bytes(20)), (bytes(60_000), bytes(10_000))]
    with pytest.raises(WorkerError, match=r"sample 1 has 70000 bytes \(a 60000, b 10000\).*page_size=131072"):
        write_indexed(target(tmp_path / "a.beton"), samples, {"a": BytesEncoder(), "b": BytesEncoder()})
    write_indexed(target(tmp_path / "a.beton", page_size=131072), samples, {"a": BytesEncoder(), "b": BytesEncoder()})
    SpecFile(tmp_path / "a.beton").check()


def test_a_sample_as_large_as_a_page_fits(tmp_path):
    samples = [(bytes(PAGE),), (b"x",), (bytes(PAGE),)]
    write_indexed(target(tmp_path / "a.beton"), samples, {"a": BytesEncoder()})
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    assert [len(file.sample(i)["a"]) for i in range(3)] == [PAGE, 1, PAGE]


def test_a_file_that_is_there_is_refused_or_replaced_when_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.beton"
    path.write_bytes(b"old")
    with pytest.raises(StoreExistsError, match=r"a\.beton is there already"):
        write_indexed(target(path), sets.Samples(3), encoders())
    with pytest.raises(WorkerError):
        write_indexed(target(path, replaces=True), sets.RaisingSamples(9, at=3), encoders())
    assert path.read_bytes() == b"old"
    write_indexed(target(path, replaces=True), sets.Samples(3), encoders())
    assert SpecFile(path).number == 3


def stream(lengths, number):
    return iter([sets.rich_sample(sum(lengths[:number]) + i) for i in range(lengths[number])])


@pytest.mark.parametrize("workers", [1, 3])
def test_streams_follow_each_other_a_short_last_one_and_empty_ones_too(tmp_path, workers):
    lengths = [0, 13, 7, 0, 20, 1]
    names = [f"shard {i}" for i in range(len(lengths))]
    path = tmp_path / "a.beton"
    write_streams(target(path, workers=workers), partial(stream, lengths), lengths, names, encoders(), lot_samples=4)
    file = SpecFile(path)
    file.check()
    assert file.number == 41
    for index in range(41):
        assert_same(file.sample(index), sets.rich_sample(index))


def test_the_file_of_streams_is_the_same_for_every_number_of_workers(tmp_path):
    lengths = [5 + i % 4 for i in range(40)]
    for workers in (1, 2, 4):
        arguments = (partial(stream, lengths), lengths, ["shard"] * 40, encoders())
        write_streams(target(tmp_path / f"{workers}.beton", workers=workers), *arguments, lot_samples=3)
    assert len({(tmp_path / f"{workers}.beton").read_bytes() for workers in (1, 2, 4)}) == 1


@pytest.mark.parametrize(("told", "message"), [(8, "shard 1 had 8 samples .* ends after 7"), (6, "now has more")])
def test_a_stream_that_changes_after_it_was_counted_is_named(tmp_path, told, message):
    with pytest.raises(WorkerError, match=message):
        write_streams(
            target(tmp_path / "a.beton"), partial(stream, [3, 7]), [3, told], ["shard 0", "shard 1"], encoders()
        )


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_told_as_such_and_nothing_is_left(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(os, "pwrite", full_disk)
    with pytest.raises(DiskFullError, match="no space left to write") as caught:
        write_indexed(target(tmp_path / "a.beton", workers=workers), sets.Samples(), encoders(), lot_samples=4)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_real_disk_that_fills_up_is_told_as_such_and_nothing_is_left(small_disk, workers):
    samples = [(bytes(30_000),)] * 100
    with pytest.raises(DiskFullError):
        write_indexed(target(small_disk / "a.beton", workers=workers), samples, {"a": BytesEncoder()}, lot_samples=4)
    assert list(small_disk.iterdir()) == []


def test_ctrl_c_ends_the_workers_and_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RateBar, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_indexed(target(tmp_path / "a.beton", workers=2), sets.Samples(), encoders(), lot_samples=4)
    assert list(tmp_path.iterdir()) == []


def is_running(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(pid, 0)
        # a process that ended and that nobody waits for is a zombie
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_writer_that_is_killed_or_interrupted_leaves_no_file_and_its_workers_end(tmp_path, how):
    script = (
        "import sys, pathlib, signal; sys.path.insert(0, sys.argv[1])\n"
        # what a shell starts in the background ignores it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sample_sets as sets, test_sample_lots as tests\n"
        "folder = pathlib.Path(sys.argv[2])\n"
        "tests.write_indexed(tests.target(folder / 'a.beton', workers=2), sets.SlowSamples(folder / 'pids'),\n"
        "                    tests.encoders(), lot_samples=4)\n"
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    parent = warm_children.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(pids.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [int(path.name) for path in pids.iterdir() if int(path.name) != parent.pid]
    parent.send_signal(how)
    parent.wait()
    assert len(workers) == 2 and not (tmp_path / "a.beton").exists()
    assert bool(hidden_files(tmp_path)) == (how == signal.SIGKILL)
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    # the next one to the same path removes what was left; who ends is gone a moment before it lets go of its locks
    write_indexed(target(tmp_path / "a.beton"), sets.Samples(3), encoders())
    while hidden_files(tmp_path) and time.monotonic() < deadline:
        write_indexed(target(tmp_path / "a.beton", replaces=True), sets.Samples(3), encoders())


def test_progress_counts_samples(tmp_path, capsys):
    pytest.importorskip("tqdm")
    write_indexed(Target(tmp_path / "a.beton", PAGE, workers=1, progress=True), sets.Samples(9), encoders())
    assert "9/9" in capsys.readouterr().err
