"""Whatever the system says to a call, at whatever moment: an error of stepwell, and what was acknowledged is there."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, CorruptSegmentError, DiskFullError, ReadOnlyError, StepwellError, StoreNotFoundError
from stepwell.errors import StoreAccessError, StoreFileError
from stepwell.store import Store, concatenate

FEATURES = {"x": Array(4), "z": Array(3, codec="zstd")}
NUMBERS = (errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOSPC, errno.EROFS)
# all numbers at all calls: STEPWELL_ALL_FAULTS=1
EVERY = os.environ.get("STEPWELL_ALL_FAULTS") == "1"
STRIDE = 1 if EVERY else 7
TASKS = {"task-1": 3, "task-2": 4}
WITH_PATH = ("open", "lstat", "listdir", "scandir", "mkdir", "rename", "replace", "link")
WITH_DESCRIPTOR = ("fstat", "pread", "pwrite", "ftruncate", "fsync", "posix_fallocate")


class Faults:
    """Let one call of the system fail: the n-th that is made while they are on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.number = 0, -1, 0
        self.is_on = False
        self.failed = ""
        for name in (*WITH_PATH, *WITH_DESCRIPTOR):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.is_on:
                self.count += 1
                if self.count == self.at:
                    self.failed = name
                    path = arguments[0] if name in WITH_PATH else None
                    raise OSError(self.number, os.strerror(self.number), path)
            return real(*arguments, **options)

        return call

    @contextmanager
    def on(self, at: int, number: int) -> Iterator[None]:
        self.count, self.at, self.number, self.is_on, self.failed = 0, at, number, True, ""
        try:
            yield
        finally:
            self.is_on = False


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of two sealed segments, two of tasks with a key, and one whose writer died in an episode."""
    path = tmp_path_factory.mktemp("faults") / "template.well"
    store = stepwell.create(path, FEATURES)
    for k in range(2):
        with store.writer() as writer:
            writer.add_episode(columns(k))
    for key, k in TASKS.items():
        with store.writer(key=key) as writer:
            writer.add_episode(columns(k))
    writer = stepwell.open(path).writer()
    writer.add_episode(columns(2))
    writer.flush()  # of what is not on the disk a copy says nothing
    segment = writer._segment
    assert segment is not None
    writer._segment = None
    segment.close().close()
    return path


def columns(k: int) -> dict[str, Any]:
    return {"x": np.full((5, 4), k, "f4"), "z": np.full((5, 3), k, "f4")}


def values(store: Any) -> list[float]:
    for episode in store:
        assert (episode["x"][:, 0] == episode["z"][:, 0]).all()
    return [float(episode["x"][0, 0]) for episode in store]


def write(path: Path) -> None:
    with Store(str(path)).writer() as writer:
        writer.add_episode(columns(7))


def flush(path: Path) -> None:
    with Store(str(path)).writer(sync="step") as writer:
        writer.append(x=np.full(4, 8, "f4"), z=np.full(3, 8, "f4"))
        writer.flush()
        writer.end_episode()


def retry(path: Path) -> None:
    with Store(str(path)).writer(key="task-1") as writer:
        writer.add_episode(columns(7))


CALLS: dict[str, Callable[[Path], Any]] = {
    "read": lambda path: values(stepwell.open(path, mode="r")),
    "recover": stepwell.open,
    "write": write,
    "flush": flush,
    "retry": retry,
    "delete": lambda path: Store(str(path)).delete_episodes([0]),
    "compact": lambda path: Store(str(path)).compact(),
    "checkpoint": lambda path: Store(str(path)).checkpoint(path.with_name("copy.well")),
    "concatenate": lambda path: concatenate(path.with_name("both.well"), [stepwell.open(path)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_at_any_call_is_one_of_stepwell_and_loses_nothing(
    name: str, template: Path, tmp_path: Path, faults: Faults
) -> None:
    at, is_over = 1 - STRIDE, False
    while not is_over:
        at += STRIDE
        for number in NUMBERS if EVERY else (NUMBERS[at % len(NUMBERS)],):
            folder = tmp_path / "work"
            shutil.rmtree(folder, ignore_errors=True)
            path = folder / "a.well"
            shutil.copytree(template, path)
            error: BaseException | None = None
            with faults.on(at, number):
                try:
                    CALLS[name](path)
                except Exception as raised:
                    error = raised
            is_over = not faults.failed
            where = (name, at, faults.failed, errno.errorcode[number], repr(error))
            assert error is None or isinstance(error, StepwellError), where
            assert not isinstance(error, StoreNotFoundError), where
            store = stepwell.open(path)
            found = values(store)
            least = {"delete": [1.0, 2.0, 3.0, 4.0], "retry": [0.0, 1.0, 2.0, 4.0]}.get(name, [0.0, 1.0, 2.0, 3.0, 4.0])
            assert [value for value in found if value in least] == least, where
            if name == "retry":
                assert found.count(3.0) + found.count(7.0) <= 1, where
                retry(path)
                assert values(stepwell.open(path)) == [0.0, 1.0, 2.0, 7.0, 4.0], where
            assert error is not None or name not in ("write", "retry") or 7.0 in found, where
            assert store.verify(deep=True).is_ok, where


def refused(call: Callable[[], Any], faults: Faults, number: int, name: str, nth: int = 1) -> BaseException:
    """Return what is raised when the n-th call of a name fails."""
    for at in range(1, 2000):
        with faults.on(at, number):
            try:
                call()
            except Exception as error:
                if faults.failed == name:
                    nth -= 1
                    if nth == 0:
                        return error
        if not faults.failed:
            break
    raise AssertionError("no such call")


def test_too_many_open_files_say_the_limit_and_how_many_are_needed(tmp_path: Path, faults: Faults) -> None:
    store = stepwell.create(tmp_path / "a.well", FEATURES)

    def record() -> None:
        store.writer().append(x=np.zeros(4, "f4"), z=np.zeros(3, "f4"))

    error = refused(record, faults, errno.EMFILE, "open", nth=3)
    assert isinstance(error, StoreFileError)
    assert error.errno == errno.EMFILE
    assert "2 features has 7 files open" in str(error)
    assert "ulimit -n" in str(error)


def test_no_right_to_read_is_a_permission_error_of_stepwell(template: Path, faults: Faults) -> None:
    error = refused(lambda: stepwell.open(template, mode="r"), faults, errno.EACCES, "open")
    assert isinstance(error, StoreAccessError)
    assert isinstance(error, PermissionError)
    assert "store.json" in str(error)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_no_right_to_write_is_a_read_only_error(
    template: Path, tmp_path: Path, faults: Faults, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.well"
    shutil.copytree(template, path)
    store = stepwell.open(path)
    for call in (
        lambda: store.writer().append(x=np.zeros(4, "f4"), z=np.zeros(3, "f4")),
        lambda: store.delete_episodes([0]),
        store.compact,
    ):
        assert isinstance(refused(call, faults, number, "open", nth=1), ReadOnlyError | StoreAccessError)
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)
    for call in (store.writer, lambda: store.delete_episodes([0]), store.compact):
        with pytest.raises(ReadOnlyError, match="may not be changed"):
            call()
    assert values(stepwell.open(path)) == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["x.npy", "z.npy", "z.bin", "episodes.npy", "episodes.jsonl"])
def test_a_file_that_a_dead_writer_has_lost_is_damage(template: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.well"
    shutil.copytree(template, path)
    (lost,) = path.glob(f"segments/*.open/{name}")
    lost.unlink()
    with pytest.raises(CorruptSegmentError, match=name.replace(".", "[.]")):
        stepwell.open(path)


@pytest.mark.parametrize("name", ["segments", "store.json"])
def test_a_store_without_its_parts_is_damaged_and_only_one_without_its_record_is_none(
    template: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.well"
    shutil.copytree(template, path)
    if name == "segments":
        shutil.rmtree(path / name)
        with pytest.raises(CorruptSegmentError, match="segments"):
            stepwell.open(path)
    else:
        (path / name).unlink()
        with pytest.raises(StoreNotFoundError):
            stepwell.open(path)


def test_errors_of_a_users_function_stay_as_they_are(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    shutil.copytree(template, path)

    def read(episode: Any) -> Any:
        return np.load(tmp_path / "labels.npy")

    with pytest.raises(FileNotFoundError, match=r"labels\.npy"):
        stepwell.open(path).add_column("new", Array(), read)


def test_a_full_disk_says_whether_the_writer_may_go_on(tmp_path: Path, faults: Faults) -> None:
    store = stepwell.create(tmp_path / "a.well", FEATURES)
    writer = store.writer()
    step = {"x": np.zeros(4, "f4"), "z": np.zeros(3, "f4")}
    writer.append(step)
    error = refused(lambda: writer.append(step), faults, errno.ENOSPC, "pwrite")
    assert isinstance(error, DiskFullError)
    assert "go on" in str(error)
    assert "closed" not in str(error)
    writer.append(step)
    writer.close()
    assert stepwell.open(tmp_path / "a.well").verify().is_ok


def test_a_full_disk_of_a_writer_with_video_says_that_it_is_closed(tmp_path: Path, faults: Faults) -> None:
    pytest.importorskip("av")
    store = stepwell.create(tmp_path / "a.well", {"image": stepwell.Video((32, 32, 3))})
    writer = store.writer()
    image = np.zeros((32, 32, 3), np.uint8)
    writer.append(image=image)
    writer.end_episode()
    for _ in range(3):
        writer.append(image=image)

    def end() -> None:
        writer.end_episode()

    error = refused(end, faults, errno.ENOSPC, "pwrite")
    assert isinstance(error, DiskFullError)
    assert "the writer is closed" in str(error)
    assert "store.writer()" in str(error)
    with pytest.raises(stepwell.WriterClosedError):
        writer.append(image=image)
    assert len(stepwell.open(tmp_path / "a.well")) >= 1
    with store.writer() as another:
        another.append(image=image)
        another.end_episode()


class LookedUp(stepwell.Codec):
    name = "looked-up"

    def encode(self, value: Any) -> bytes:
        return {0: b"zero", 1: b"one"}[int(value[0])]

    def decode_into(self, data: Any, out: Any) -> None:
        out[...] = ["zero", "one"].index(bytes(data).decode())

    def decode(self, data: Any) -> Any:
        found = np.zeros(1, np.int64)
        self.decode_into(data, found)
        return found


@pytest.mark.parametrize("kind", [KeyError, TypeError, ValueError])
def test_an_error_of_a_codec_of_ones_own_is_raised_as_it_is(
    tmp_path: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.codecs import codec as codecs

    stepwell.register_codec(LookedUp)
    try:
        store = stepwell.create(tmp_path / "a.well", {"x": Array(1, "int64", codec="looked-up")})
        writer = store.writer()
        writer.append(x=np.array([0]))
        if kind is not KeyError:

            def fail(self: Any, value: Any) -> bytes:
                raise kind(7)

            monkeypatch.setattr(LookedUp, "encode", fail)
        with pytest.raises(kind) as raised:
            writer.append(x=np.array([7]))
        assert raised.value.args == (7,)
        monkeypatch.undo()
        writer.append(x=np.array([1]))
        writer.close()
        assert store[0]["x"].tolist() == [[0], [1]]
    finally:
        for names in vars(codecs).values():
            if isinstance(names, dict):
                names.pop("looked-up", None)
