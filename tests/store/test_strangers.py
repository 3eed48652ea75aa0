"""A store from somebody else changes nothing outside of it, shows nothing of it, and never hangs."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, CorruptSegmentError, StepwellError, StoreNotFoundError
from stepwell.json_text import seal_json
from stepwell.store import Store, concatenate
from stepwell.store.column_file import make_column
from stepwell.store.snapshot import replace_table
from stepwell.store.verify import verify_store

FEATURES = {"x": Array(4), "z": Array(3, codec="zstd")}
ROWS = 5
# longer than any call takes on a busy machine
SECONDS = 60


def make_store(path: Path) -> None:
    """Make a store with two sealed segments, one of a writer that was killed, and every file of its own."""
    store = stepwell.create(path, FEATURES)
    for k in range(3):
        with store.writer() as writer:
            writer.add_episode(columns(k))
    store.delete_episodes([2])
    killed = stepwell.open(path)
    writer = killed.writer()
    writer.add_episode(columns(3))
    writer.flush()  # of what is not on the disk a copy says nothing
    segment = writer._segment
    assert segment is not None
    # a writer that nobody closes leaves the same as one that is killed
    writer._segment = None
    segment.close().close()
    names = sorted(entry.name for entry in (path / "segments").iterdir())
    write_json(path / "arrangement.json", {"sequence": 1, "positions": {names[0]: 0}, "hidden": []})
    table = store.segments
    records, counts = table[:2][0].records, np.array([1])
    replace_table(str(path), np.array([table[0].key]), counts, records)
    (path / "maintenance").touch()


def columns(k: int) -> dict[str, Any]:
    return {"x": np.full((ROWS, 4), k, "f4"), "z": np.full((ROWS, 3), k, "f4")}


def write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_bytes(seal_json(record))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("strangers") / "template.well"
    make_store(path)
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "evil.well"
    shutil.copytree(template, path)
    yield path


@pytest.fixture
def precious(template: Path, tmp_path: Path) -> Path:
    """What must stay as it is: a directory with a copy of all that a store has, so that every link would work."""
    path = tmp_path / "precious"
    shutil.copytree(template, path)
    for left in ("staging", "staging/undo"):
        (path / left).mkdir(exist_ok=True)
    return path


def state_of(path: Path) -> dict[str, Any]:
    found = {}
    for entry in sorted(path.rglob("*")):
        status = entry.lstat()
        data = entry.read_bytes() if entry.is_file() else b""
        found[str(entry.relative_to(path))] = (status.st_mode, status.st_mtime_ns, data)
    return found


def segment_of(path: Path, *, is_open: bool) -> Path:
    return next(entry for entry in sorted((path / "segments").iterdir()) if entry.suffix == ".open" or not is_open)


def read_all(store: Any) -> list[tuple[Any, Any]]:
    return [(episode["x"].tolist(), episode["z"].tolist()) for episode in store]


def add_column(path: Path) -> None:
    found = Store(str(path))
    found.add_column("new", Array(), lambda episode: np.zeros(len(episode["x"]), "f4"))


def write(path: Path) -> None:
    with Store(str(path)).writer() as writer:
        writer.add_episode(columns(9))


CALLS: dict[str, Callable[[Path], Any]] = {
    "open a": lambda path: read_all(stepwell.open(path)),
    "open r": lambda path: read_all(stepwell.open(path, mode="r")),
    "statistics": lambda path: stepwell.open(path, mode="r").statistics() and None,
    "verify": lambda path: verify_store(path, deep=True) and None,
    "compact": lambda path: Store(str(path)).compact() and None,
    "delete": lambda path: Store(str(path)).delete_episodes([0]) and None,
    "add_column": add_column,
    "checkpoint": lambda path: read_all(stepwell.open(Store(str(path)).checkpoint(path.with_name("copy.well")))),
    "concatenate": lambda path: read_all(concatenate(path.with_name("both.well"), [stepwell.open(path, mode="r")])),
    "writer": write,
}
TRUTH = [([[k] * 4] * ROWS, [[k] * 3] * ROWS) for k in map(float, range(4))]


def outcome(call: Callable[[Path], Any], path: Path) -> Any:
    """Return what a call returns or raises; fails when it does not come back."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call(path))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    return found[0]


def check(store: Path, precious: Path, name: str) -> Any:
    """Call one thing; nothing outside is changed or shown, and what is raised is an error of stepwell."""
    before = state_of(precious)
    result = outcome(CALLS[name], store)
    assert state_of(precious) == before, name
    if isinstance(result, BaseException):
        assert isinstance(result, StepwellError), (name, result)
        assert not isinstance(result, StoreNotFoundError), (name, result)
    elif result is not None:
        assert all(episode in TRUTH for episode in result), name
    return result


STORE_FILES = ["store.json", "lock", "maintenance", "deleted.npy", "arrangement.json", "segments.table"]
SEALED_FILES = ["x.npy", "z.npy", "z.bin", "episodes.npy", "episodes.jsonl", "segment.json", "statistics.npz"]
OPEN_FILES = ["x.npy", "z.npy", "z.bin", "episodes.npy", "episodes.jsonl", "progress"]
FILES = [*STORE_FILES, *(f"SEALED/{name}" for name in SEALED_FILES), *(f"OPEN/{name}" for name in OPEN_FILES)]
DIRECTORIES = ["segments", "SEALED", "OPEN", "staging", "staging/undo"]


def place(store: Path, name: str) -> str:
    """Return the path within a store of a file or directory; SEALED and OPEN stand for a segment of each kind."""
    for kind in ("SEALED", "OPEN"):
        if name.startswith(kind):
            segment = segment_of(store, is_open=kind == "OPEN").relative_to(store)
            return f"{segment}{name.removeprefix(kind)}"
    return name


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)


@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_links_lead_nowhere(store: Path, precious: Path, template: Path, name: str) -> None:
    where = place(store, name)
    results = {}
    for call in CALLS:
        shutil.rmtree(store.parent)
        shutil.copytree(template, store)
        remove(store / where)
        (store / where).symlink_to(precious / where)
        if name == "staging/undo":
            write_json(store / "staging/undo.json", {"feature": "new"})
        results[call] = check(store, precious, call)
    raised = [call for call, result in results.items() if isinstance(result, CorruptSegmentError)]
    # what nobody asks for is not looked at
    assert raised or name in {"maintenance", "lock", "segments.table"}
    if name in ("store.json", "segments", "SEALED", "OPEN"):
        assert "symbolic link" in str(results["open r"])


@pytest.mark.parametrize("name", FILES)
def test_fifos_are_not_waited_for(store: Path, precious: Path, template: Path, name: str) -> None:
    where = place(store, name)
    for call in ("open a", "open r", "verify", "compact", "checkpoint", "add_column"):
        shutil.rmtree(store.parent)
        shutil.copytree(template, store)
        remove(store / where)
        os.mkfifo(store / where)
        check(store, precious, call)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_leftovers_of_writers_are_no_way_out(store: Path, precious: Path, kind: str) -> None:
    """Names that stepwell makes for a moment may be there already, as links to files that are, or that are not."""
    for name in ("store.json", "deleted.npy", "arrangement.json", f"{place(store, 'OPEN')}/segment.json"):
        for number in (os.getpid(),):
            left = store / f"{name}.{number}.tmp"
            left.symlink_to(precious / ("store.json" if kind == "link" else "not there"))
    for name in (".new-00000007-abcd", ".new-00000008-abcd"):
        (store / "segments" / name).symlink_to(precious)
    for call in ("open a", "delete", "compact", "writer"):
        check(store, precious, call)


@pytest.mark.parametrize(
    "name", ["../../precious", "../../../precious", "/precious", ".", "..", "00000000-7f3a/../../../precious", "x\n", 7]
)
@pytest.mark.parametrize("key", ["hidden", "positions"])
def test_names_in_an_arrangement_are_names_of_segments(store: Path, precious: Path, key: str, name: Any) -> None:
    record: dict[str, Any] = {"sequence": 1, "positions": {}, "hidden": []}
    record[key] = {str(name): 1} if key == "positions" else [name]
    write_json(store / "arrangement.json", record)
    (store / "staging").mkdir(exist_ok=True)
    for call in ("open a", "open r", "compact", "checkpoint"):
        error = check(store, precious, call)
        assert isinstance(error, CorruptSegmentError)
        assert "arrangement.json" in str(error)


@pytest.mark.parametrize("feature", ["../../../precious/segments", "/x", "..", "", None, 7, ["x"], "a/b"])
def test_a_column_to_be_undone_is_one_of_a_segment(store: Path, precious: Path, feature: Any) -> None:
    segment = segment_of(store, is_open=False).name
    (store / "staging" / "undo" / segment).mkdir(parents=True)
    (precious / "segments.npy").write_bytes(b"precious")
    write_json(store / "staging" / "undo.json", {"feature": feature})
    error = check(store, precious, "open a")
    assert isinstance(error, CorruptSegmentError)
    assert "undo.json" in str(error)


@pytest.mark.parametrize("entry", ["link", "other", "precious"])
def test_files_that_are_put_back_are_those_of_a_segment(store: Path, precious: Path, entry: str) -> None:
    segment = segment_of(store, is_open=False).name
    undo = store / "staging" / "undo"
    undo.mkdir(parents=True)
    write_json(store / "staging" / "undo.json", {"feature": "new"})
    if entry == "link":
        (undo / segment).symlink_to(precious)
    elif entry == "other":
        (undo / "segments").mkdir()
    else:
        (undo / segment).mkdir()
        (undo / segment / "x.npy").write_bytes(b"not what the segment had")
    assert isinstance(check(store, precious, "open a"), CorruptSegmentError)
    assert (store / "segments" / segment / "x.npy").stat().st_size > 100


def test_a_manifest_lists_files_of_its_segment_only(store: Path, precious: Path) -> None:
    path = segment_of(store, is_open=False) / "segment.json"
    manifest = json.loads(path.read_text())
    secret = (precious / "store.json").read_bytes()
    manifest["files"]["../../../../precious/store.json"] = {"bytes": len(secret), "crc32": "00000000"}
    write_json(path, manifest)
    report = verify_store(store)
    assert [finding.file for finding in report.findings] == [str(path.relative_to(store))]
    for call in ("concatenate", "add_column"):
        assert isinstance(check(store, precious, call), CorruptSegmentError)


def huge_zstd(store: Path) -> None:
    change_json(store / "store.json", lambda record: record["features"]["z"].update(shape=[10**10]))


def huge_rows(store: Path) -> None:
    # those that count in this boot, and those that count in a copy
    for start in (16, 64):
        change_bytes(store / place(store, "OPEN/progress"), start, (1 << 31).to_bytes(8, "little"))


def huge_episodes(store: Path) -> None:
    change_bytes(store / place(store, "OPEN/progress"), 24, (1 << 62).to_bytes(8, "little"))


def huge_deleted(store: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }"
    (store / "deleted.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def huge_table(store: Path) -> None:
    os.truncate(store / "arrangement.json", 1 << 40)


def deep_json(store: Path) -> None:
    depth = 100_000
    body = b'{\n  "sequence": ' + b"[" * depth + b"]" * depth + b",\n"
    import zlib

    (store / "arrangement.json").write_bytes(body + b'  "crc32": "%08x"\n}\n' % zlib.crc32(body))


def deep_metadata(store: Path) -> None:
    (store / place(store, "SEALED/episodes.jsonl")).write_bytes(b"[" * 100_000 + b"]" * 100_000 + b"\n")


def huge_number(store: Path) -> None:
    body = b'{\n  "sequence": 1e999, "positions": {}, "hidden": [],\n'
    import zlib

    (store / "arrangement.json").write_bytes(body + b'  "crc32": "%08x"\n}\n' % zlib.crc32(body))


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads(path.read_text())
    change(record)
    write_json(path, record)


def change_bytes(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


@pytest.mark.parametrize(
    "change",
    [huge_zstd, huge_rows, huge_episodes, huge_deleted, huge_table, deep_json, deep_metadata, huge_number],
)
def test_sizes_are_refused_before_memory_is_asked_for(
    store: Path, precious: Path, change: Callable[[Path], None]
) -> None:
    change(store)

    def read(path: Path) -> Any:
        found = stepwell.open(path, mode="r")
        return [(episode["x"], episode["z"], episode.metadata) for episode in found]

    error = outcome(read, store)
    assert isinstance(error, StepwellError)
    for call in ("open a", "verify", "compact", "statistics"):
        check(store, precious, call)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fps", "30"),
        ("fps", [1]),
        ("metadata", []),
        ("segment_bytes", "1"),
        ("segment_bytes", 0),
        ("sync", "always"),
        ("sync", ["none"]),
        ("uuid", None),
        ("version", "1"),
        ("version", None),
        ("features", []),
        ("features", {"../x": {}}),
        ("features", {"x": 7}),
        ("capacity", {"steps": 1e999}),
        ("capacity", [1]),
    ],
)
def test_fields_of_a_store_are_what_they_must_be(store: Path, precious: Path, name: str, value: Any) -> None:
    change_json(store / "store.json", lambda record: record.update({name: value}))
    for call in ("open a", "open r", "verify"):
        error = check(store, precious, call)
        assert call == "verify" or isinstance(error, CorruptSegmentError)


def test_every_file_of_a_store_was_tried(store: Path) -> None:
    store_files = {entry.name for entry in store.iterdir() if entry.is_file()}
    assert store_files == set(STORE_FILES)
    assert {entry.name for entry in segment_of(store, is_open=False).iterdir()} == set(SEALED_FILES)
    assert {entry.name for entry in segment_of(store, is_open=True).iterdir()} == set(OPEN_FILES)


def test_the_path_of_a_store_may_lead_through_links(store: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(store)
    assert len(stepwell.open(link)) == 3
    with stepwell.open(link).writer() as writer:
        writer.add_episode(columns(1))
    assert stepwell.open(link).verify(deep=True).is_ok


def test_directories_of_columns_are_never_made_through_links(store: Path, precious: Path) -> None:
    target = store / "x.npy"
    target.symlink_to(precious / "new.npy")
    with pytest.raises(FileExistsError):
        make_column(str(store), "x", stepwell.Array(4), 1)
    assert not (precious / "new.npy").exists()
