import os
import random
import shutil
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import CorruptSegmentError
from stepwell.json_text import open_json, seal_json
from stepwell.store import verify
from stepwell.store.verify import Finding, Report, verify_store

SCHEMA = {
    "observation": stepwell.Array(3, "float32", final=True),
    "image": stepwell.Image((16, 16, 3), codec="png", final=True),
    "action": stepwell.Array((), "int64"),
    "note": stepwell.Text(),
    "mask": stepwell.Array((4, 2), "bool", codec="zstd"),
}


def write_store(path):
    rng = np.random.default_rng(0)
    store = stepwell.create(path, SCHEMA, fps=10, metadata={"robot": "ärmchen"})
    for segment in range(2):
        with store.writer() as writer:
            for episode in range(3):
                for step in range(4 + episode):
                    writer.append(
                        observation=rng.normal(size=3).astype(np.float32),
                        image=rng.integers(0, 256, (16, 16, 3), dtype=np.uint8),
                        action=step,
                        note=f"step {step}",
                        mask=rng.random((4, 2)) < 0.5,
                    )
                last = {"observation": np.ones(3, np.float32), "image": np.zeros((16, 16, 3), np.uint8)}
                writer.end_episode(terminated=True, final=last, task=f"task {segment}")
    return store


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "pristine.well"
    write_store(path).close()
    return path


@pytest.fixture
def damaged(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "damaged.well")
    return tmp_path / "damaged.well"


def checked_files(path):
    """Return the files whose every byte is under a checksum."""
    return [path / "store.json", *sorted(file for file in path.glob("segments/*/*"))]


def relative(file, path):
    return file.relative_to(path).as_posix()


def segment_of(path):
    return sorted((path / "segments").iterdir())[0]


def test_a_store_as_it_was_written_has_no_findings(pristine):
    report = verify_store(pristine, deep=True)
    assert report.findings == ()
    assert report.is_ok
    assert report.num_segments == 2
    assert report.num_bytes >= sum(
        file.stat().st_size for file in pristine.glob("segments/*/*") if file.suffix == ".npy"
    )
    assert "all as written" in str(report)


def test_the_stores_own_method_gives_the_same_report(pristine):
    with stepwell.open(pristine, mode="r") as store:
        assert store.verify() == verify_store(pristine)


def test_every_flipped_bit_is_found_and_named(pristine, damaged):
    rng = random.Random(0)
    for file in checked_files(damaged):
        good = file.read_bytes()
        for _ in range(4):
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            file.write_bytes(bad)
            findings = verify_store(damaged).findings
            assert relative(file, damaged) in {finding.file for finding in findings}
        file.write_bytes(good)
    assert verify_store(damaged).is_ok


def test_one_flipped_bit_of_a_feature_blames_no_other_feature(damaged):
    for file in sorted(segment_of(damaged).glob("*")):
        if file.name in ("segment.json", "episodes.npy"):
            continue
        good = file.read_bytes()
        bad = bytearray(good)
        bad[len(bad) * 2 // 3] ^= 16
        file.write_bytes(bad)
        findings = verify_store(damaged).findings
        assert findings[0].file == relative(file, damaged)
        # a wrong offset also moves the end of the rows in the other file of the feature
        assert {finding.file.rpartition(".")[0] for finding in findings} == {relative(file, damaged).rpartition(".")[0]}
        assert f"crc32 {zlib.crc32(good):08x} stored, {zlib.crc32(bad):08x} computed" in findings[0].problem
        file.write_bytes(good)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_cut_or_grown_or_missing_file_is_found_and_named(pristine, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "damaged.well"
    shutil.copytree(pristine, path)
    file = data.draw(st.sampled_from(checked_files(path)))
    how = data.draw(st.sampled_from(["cut", "grow", "remove", "zero", "directory"]))
    size = file.stat().st_size
    if how == "cut":
        os.truncate(file, data.draw(st.integers(0, size - 1)))
    elif how == "grow":
        os.truncate(file, size + data.draw(st.integers(1, 100)))
    elif how == "zero":
        file.write_bytes(bytes(size))
    else:
        file.unlink()
        if how == "directory":
            file.mkdir()
    findings = verify_store(path, deep=data.draw(st.booleans())).findings
    assert relative(file, path) in {finding.file for finding in findings}


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_garbage_never_makes_it_raise(pristine, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("garbage") / "damaged.well"
    shutil.copytree(pristine, path)
    files = data.draw(st.lists(st.sampled_from(checked_files(path)), min_size=1, max_size=5, unique=True))
    for file in files:
        good = file.read_bytes()
        start = data.draw(st.integers(0, len(good)))
        file.write_bytes(good[:start] + data.draw(st.binary(max_size=300)))
    changed = {
        relative(file, path) for file in files if file.read_bytes() != (pristine / relative(file, path)).read_bytes()
    }
    report = verify_store(path, deep=True)
    named = {finding.file for finding in report.findings}
    # without its manifest the rest of a segment has no checksums
    lost = {name.rsplit("/", 1)[0] for name in changed if name.endswith("segment.json")}
    assert {name for name in changed if name.endswith(".json") or name.rsplit("/", 1)[0] not in lost} <= named


def test_without_the_manifest_the_structure_is_still_checked(damaged):
    segment = segment_of(damaged)
    (segment / "segment.json").unlink()
    os.truncate(segment / "action.npy", (segment / "action.npy").stat().st_size - 8)
    os.truncate(segment / "image.bin", 100)
    offsets = bytearray((segment / "note.npy").read_bytes())
    offsets[128:136] = (3).to_bytes(8, "little")
    (segment / "note.npy").write_bytes(offsets)
    named = {finding.file.rsplit("/", 1)[1] for finding in verify_store(damaged).findings}
    assert named == {"segment.json", "action.npy", "image.bin", "note.npy"}


def test_deep_finds_rows_that_cannot_be_decoded(damaged):
    segment = segment_of(damaged)
    (segment / "segment.json").unlink()
    blobs = bytearray((segment / "image.bin").read_bytes())
    blobs[:20] = bytes(20)
    (segment / "image.bin").write_bytes(blobs)
    name = f"segments/{segment.name}/image.bin"
    assert name not in {finding.file for finding in verify_store(damaged).findings}
    deep = {finding.file: finding.problem for finding in verify_store(damaged, deep=True).findings}
    assert "1 row cannot be decoded, the first is row 0" in deep[name]


def test_an_impossible_length_of_an_episode_does_not_hang_the_decoding(damaged):
    table = segment_of(damaged) / "episodes.npy"
    records = np.load(table, mmap_mode="r+")
    records["length"][1] = 1 << 60
    records.flush()
    named = {finding.file.rsplit("/", 1)[1] for finding in verify_store(damaged, deep=True).findings}
    assert named == {"episodes.npy"}


def test_unknown_files_and_directories_are_named(damaged):
    segment = segment_of(damaged)
    (segment / "stray.npy").write_bytes(b"x")
    (damaged / "segments" / "notes.txt").write_bytes(b"x")
    named = {finding.file: finding.problem for finding in verify_store(damaged).findings}
    assert set(named) == {f"segments/{segment.name}/stray.npy", "segments/notes.txt"}
    assert "not listed in segment.json" in named[f"segments/{segment.name}/stray.npy"]


def test_a_column_that_the_manifest_forgot_is_named(damaged):
    segment = segment_of(damaged)
    manifest = open_json((segment / "segment.json").read_bytes())
    del manifest["files"]["action.npy"]
    (segment / "segment.json").write_bytes(seal_json(manifest))
    (segment / "action.npy").unlink()
    findings = verify_store(damaged).findings
    assert [finding.file for finding in findings] == [f"segments/{segment.name}/action.npy"]


def test_a_manifest_that_contradicts_the_episodes_is_found(damaged):
    segment = segment_of(damaged)
    manifest = open_json((segment / "segment.json").read_bytes())
    for change in ({"episodes": 4}, {"rows": 1}, {"files": 3}, {"rows": None}):
        (segment / "segment.json").write_bytes(seal_json(manifest | change))
        assert not verify_store(damaged).is_ok


def test_a_store_without_its_record_is_still_compared_with_its_checksums(damaged):
    (damaged / "store.json").unlink()
    assert [finding.file for finding in verify_store(damaged).findings] == ["store.json"]
    os.truncate(segment_of(damaged) / "action.npy", 3)
    assert [finding.file.rsplit("/", 1)[-1] for finding in verify_store(damaged).findings] == [
        "store.json",
        "action.npy",
    ]
    assert not verify_store(damaged / "nothing").is_ok


def test_a_live_segment_is_checked_for_what_it_committed(damaged):
    store = stepwell.open(damaged)
    with store.writer() as writer:
        values = {"image": np.zeros((16, 16, 3), np.uint8), "mask": np.zeros((4, 2), bool), "note": "", "action": 1}
        for _ in range(3):
            writer.append(observation=np.zeros(3, np.float32), **values)
        writer.end_episode()
        writer.append(observation=np.zeros(3, np.float32), **values)
        report = verify_store(store)
        assert report.is_ok
        assert report.num_segments == 3
        live = next((damaged / "segments").glob("*.open"))
        before = (live / "image.bin").read_bytes()
        (live / "image.bin").rename(live / "gone")
        assert [finding.file for finding in verify_store(store).findings] == [f"segments/{live.name}/image.npy"]
        (live / "gone").rename(live / "image.bin")
        assert (live / "image.bin").read_bytes() == before
    assert verify_store(store).is_ok


def test_progress_ends_at_the_total(pristine):
    seen = []
    report = verify_store(pristine, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (report.num_bytes, report.num_bytes)


def test_deleted_episodes_leave_a_list_of_ids_that_is_checked(damaged):
    np.save(damaged / "deleted.npy", np.array([0], np.int64))
    assert verify_store(damaged).is_ok
    for bad in (b"", b"\x93NUMPY", (damaged / "deleted.npy").read_bytes()[:-1]):
        (damaged / "deleted.npy").write_bytes(bad)
        assert [finding.file for finding in verify_store(damaged).findings] == ["deleted.npy"]


def test_a_report_prints_its_findings():
    report = Report("a.well", 1, 10, (Finding("segments/00000000-abcd/action.npy", "missing"),))
    assert str(report).splitlines()[1] == "  segments/00000000-abcd/action.npy: missing"
    assert not report.is_ok


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)),
    st.data(),
)
def test_sealed_json_notices_every_flipped_bit_and_every_cut(record, data):
    record.pop("crc32", None)
    good = seal_json(record)
    assert open_json(good) == record
    assert seal_json(open_json(good)) == good
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for changed in (bytes(bad), good[: data.draw(st.integers(0, len(good) - 1))], good + b"\n", b" " + good):
        with pytest.raises(CorruptSegmentError):
            open_json(changed)


def test_a_segment_that_is_compacted_away_in_the_middle_of_it_is_no_finding(tmp_path, monkeypatch):
    path = tmp_path / "a.well"
    stale = write_store(path)

    def listed_and_compacted(checks, *arguments):
        stepwell.open(path).compact()
        return run(checks, *arguments)

    run = verify._run
    monkeypatch.setattr(verify, "_run", listed_and_compacted)
    assert str(verify_store(path).findings) == "()"
    assert "0 B" in repr(stale)
