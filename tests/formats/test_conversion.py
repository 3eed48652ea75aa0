"""A data set of another system becomes a store."""

import json
import os
import pickle
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from folder_reader import CAMERA, FolderReader, pictures, write_folder

import stepwell
from stepwell import Array, Image, Schema, Video, convert
from stepwell.errors import (
    EpisodeNotFoundError,
    FeatureNotFoundError,
    LeftOutWarning,
    SchemaError,
    StepwellError,
    StoreBusyError,
    StoreExistsError,
    StoreNotFoundError,
    WorkerError,
)
from stepwell.formats import FileSpans, Reader, import_dataset, open_reader
from stepwell.progress import RateBar
from stepwell.recorders.recoding import converted_schema

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")
LENGTHS = (4, 7, 3, 5)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "set", LENGTHS)


def files_of(store: Path) -> dict[str, bytes]:
    """Return what must be the same for every way to the same store: all but times and the identity."""
    found = {}
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        if path.name == "episodes.npy":
            records = np.load(path)
            records["time_ns"] = 0
            found[name] = records.tobytes()
        elif path.is_file() and path.name not in ("store.json", "segment.json", "lock"):
            found[name] = path.read_bytes()
    return found


def test_encoded_rows_are_stored_as_the_bytes_they_are(folder, tmp_path):
    report = convert(folder, tmp_path / "x.well", workers=1)
    store = stepwell.open(tmp_path / "x.well")
    assert store.schema == Schema({"top": CAMERA, "action": Array(2)})
    assert (store.fps, dict(store.metadata)) == (10, {"from": "folder"})
    blobs = b""
    for index, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(store[index]["top"], pictures(index, length))
        assert (store[index]["action"] == index).all()
        assert store[index].terminated == (index % 2 == 0)
        assert store[index].metadata == {"file": f"{index:03d}.npz"}
        with np.load(folder / f"{index:03d}.npz") as found:
            blobs += b"".join(found[f"top{step}"].tobytes() for step in range(length))
    assert b"".join((segment.path / "top.bin").read_bytes() for segment in store.segments) == blobs
    assert report.features["top"].distortion is None and report.num_steps == sum(LENGTHS)


def test_every_number_of_workers_makes_the_same_store(folder, tmp_path):
    for workers in (0, 1, 2):
        convert(folder, tmp_path / f"{workers}.well", features="jpeg", workers=workers)
    first, *others = [files_of(tmp_path / f"{workers}.well") for workers in (0, 1, 2)]
    assert all(other == first for other in others)
    assert len(stepwell.open(tmp_path / "2.well").segments) == 4


@pytest.mark.parametrize(
    ("codecs", "codec", "error"),
    [("jpeg", "jpeg", 12), ({"top": "raw"}, "raw", 0), ("delta", "delta", 0), ({"top": CAMERA}, "png", 0)],
)
def test_other_codecs_are_made_as_it_is_written(codecs, codec, error, folder, tmp_path):
    pytest.importorskip("zstandard")
    report = convert(folder, tmp_path / "x.well", features=codecs, workers=1)
    store = stepwell.open(tmp_path / "x.well")
    assert store.schema["top"].codec == codec
    assert np.abs(store[1]["top"].astype(int) - pictures(1, 7)).mean() <= error
    assert (report.features["top"].distortion is None) == (codec == "png")


def test_a_reader_that_was_opened_is_taken_and_says_its_schema(folder, tmp_path):
    reader = open_reader(folder)
    jpeg = {
        name: Image(feature.shape, codec="jpeg", quality=80)
        for name, feature in reader.schema.items()
        if feature.kind == "image"
    }
    convert(reader, tmp_path / "x.well", jpeg, workers=1)
    assert stepwell.open(tmp_path / "x.well").schema["top"] == Image((16, 24, 3), codec="jpeg", quality=80)


def test_the_codec_that_a_feature_has_already_means_as_it_is():
    video = Schema({"top": Video((16, 24, 3), gop=7)})
    assert converted_schema(video, "video") == video
    assert converted_schema(video, {}) == video


def test_chosen_episodes_are_imported_and_no_others_are_read(folder, tmp_path):
    reader = FolderReader(folder)
    convert(reader, tmp_path / "x.well", episodes=[3, 1], workers=1)
    store = stepwell.open(tmp_path / "x.well")
    assert [episode.metadata["file"] for episode in store] == ["001.npz", "003.npz"]
    assert reader.prepared == reader.forgotten == [1, 3]


@pytest.mark.parametrize("episodes", [[4], slice(9, 12), [], "first", np.zeros(3, bool)])
def test_episodes_that_are_not_there_are_refused(episodes, folder, tmp_path):
    with pytest.raises(EpisodeNotFoundError, match="the source has 4"):
        convert(folder, tmp_path / "x.well", episodes=episodes, workers=1)
    assert not (tmp_path / "x.well").exists()


def test_a_codec_that_cannot_be_is_refused_and_nothing_is_written(folder, tmp_path):
    with pytest.raises(FeatureNotFoundError, match="wrist"):
        convert(folder, tmp_path / "x.well", features={"wrist": "jpeg"}, workers=1)
    with pytest.raises(SchemaError, match="feature 'action'"):
        convert(folder, tmp_path / "x.well", features={"action": "jpeg"}, workers=1)
    with pytest.raises(SchemaError, match="no images"):
        converted_schema(Schema({"action": Array(2)}), "jpeg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_an_episode_that_cannot_be_read_is_named_and_the_others_are_kept(folder, tmp_path):
    (folder / "002.npz").write_bytes(b"no zip")
    target = tmp_path / "x.well"
    with pytest.raises(WorkerError, match=r"episode 2 of .*set cannot be read"):
        convert(folder, target, workers=1)
    assert [episode.metadata["file"] for episode in stepwell.open(target)] == ["000.npz", "001.npz"]
    (folder / "002.npz").write_bytes((folder / "001.npz").read_bytes())
    reader = FolderReader(folder)
    with pytest.warns(LeftOutWarning, match="files of the source changed since this was begun. 2 segments"):
        report = convert(reader, target, workers=1)
    assert reader.prepared == [2, 3]
    assert (report.num_episodes, report.num_steps) == (4, 4 + 7 + 7 + 5)


def test_a_record_of_a_conversion_without_its_store_is_refused(folder, tmp_path):
    (tmp_path / "x.well").mkdir()
    (tmp_path / "x.well" / "importing.json").write_text("{}")
    with pytest.raises(StoreExistsError, match=r"importing\.json and no store"):
        convert(folder, tmp_path / "x.well", workers=1)


def test_features_that_are_none_of_both_are_refused(folder, tmp_path):
    with pytest.raises(SchemaError, match="features is a NoneType"):
        convert(folder, tmp_path / "x.well", None, workers=1)


def test_the_name_that_it_had_before_warns(folder, tmp_path):
    with pytest.warns(DeprecationWarning, match="stepwell.convert"):
        report = import_dataset(folder, tmp_path / "x.well", codecs="jpeg", workers=1)
    assert report.features["top"].after.codec == "jpeg"


def test_without_resume_a_failure_takes_everything_back(folder, tmp_path):
    (folder / "002.npz").write_bytes(b"no zip")
    with pytest.raises(WorkerError):
        convert(folder, tmp_path / "x.well", workers=1, resume=False)
    assert not (tmp_path / "x.well").exists()


def test_a_row_that_cannot_be_decoded_names_episode_and_feature(folder, tmp_path):
    with np.load(folder / "001.npz") as found:
        columns = dict(found)
    columns["top3"] = columns["top3"][:40]
    np.savez(folder / "001.npz", **columns)
    with pytest.raises(WorkerError, match=r"episode 1 of .*set, feature 'top', steps 0 to 6: .*png row"):
        convert(folder, tmp_path / "x.well", features="jpeg", workers=1)


def test_a_finished_target_is_refused_before_anything_is_read(folder, tmp_path):
    convert(folder, tmp_path / "x.well", workers=1)
    with pytest.raises(StoreExistsError, match="is there already"):
        convert(tmp_path / "nowhere", tmp_path / "x.well")
    with pytest.raises(StoreNotFoundError, match=r"no store and no data set at .*nowhere"):
        convert(tmp_path / "nowhere", tmp_path / "y.well")
    with pytest.raises(StepwellError, match=r"options fps of .*: a store has none"):
        convert(tmp_path / "x.well", tmp_path / "y.well", "png", fps=3.0)
    for source in (stepwell.open(tmp_path / "x.well"), FolderReader(folder)):
        with pytest.raises(StepwellError, match=r"options reader of .*: a store has none"):
            convert(source, tmp_path / "y.well", "png", reader="folder")


class Fetching(FolderReader):
    """A reader that fetches a file, and ends in a way of its own at one episode."""

    def __init__(self, folder, at=1, end=lambda reader: None):
        super().__init__(folder)
        self._at, self._end = at, end

    def episode_bytes(self, schema):
        return 1 << 20

    def __getitem__(self, index):
        self.scratch.mkdir(exist_ok=True)
        (self.scratch / "fetched").touch()
        if index == self._at:
            self._end(self)
        return super().__getitem__(index)


def kill(reader):
    os.kill(os.getpid(), signal.SIGKILL)


def killed(action):
    """Run what kills its process."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("codecs", [{}, "jpeg"])
def test_a_source_that_changed_meanwhile_is_warned_of_or_refused(codecs, folder, tmp_path):
    target = tmp_path / "x.well"
    killed(lambda: convert(Fetching(folder, 2, kill), target, codecs, workers=0))
    write_folder(tmp_path / "longer", (*LENGTHS, 2))
    (tmp_path / "longer" / "004.npz").rename(folder / "004.npz")
    with pytest.raises(StoreExistsError, match=r"made of other things: source .*4 episodes.*, not .*5 episodes"):
        convert(Fetching(folder), target, codecs, workers=0)
    (folder / "004.npz").unlink()
    os.utime(folder / "000.npz", ns=(0, 0))
    with pytest.warns(LeftOutWarning, match="files of the source changed"):
        convert(Fetching(folder), target, codecs, workers=0)
    assert len(stepwell.open(target)) == 4


def test_the_report_has_the_bytes_of_rows_whether_they_were_encoded_or_taken(folder, tmp_path):
    taken = convert(folder, tmp_path / "x.well", workers=0).features
    encoded = convert(folder, tmp_path / "y.well", "raw", workers=0).features
    assert taken["action"].bytes_after == encoded["action"].bytes_after == sum(LENGTHS) * 8
    assert taken["top"].bytes_after == encoded["top"].bytes_before
    assert encoded["top"].bytes_after == sum(LENGTHS) * CAMERA.row_bytes


def test_other_options_of_the_reader_are_another_source(folder, tmp_path):
    target = tmp_path / "x.well"
    (folder / "002.npz").rename(tmp_path / "whole")
    (folder / "002.npz").write_bytes(b"no zip")
    with pytest.raises(WorkerError, match="episode 2"):
        convert(folder, target, workers=0, slow=0.0)
    with pytest.raises(
        StoreExistsError, match=r"made of other things: source .*slow [0-9a-f]{8}.*, not .*slow [0-9a-f]{8}"
    ):
        convert(folder, target, workers=0, slow=0.001)


def test_a_target_in_its_source_is_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    for source in (folder, tmp_path / "link", FolderReader(folder)):
        with pytest.raises(StepwellError, match=r"lies in .*, the source of it"):
            convert(source, folder / "x.well", workers=0)
    convert(folder, tmp_path / "x.well", workers=0)
    with pytest.raises(StepwellError, match=r"lies in .*, the source of it"):
        convert(tmp_path / "x.well", tmp_path / "x.well" / "segments" / "y.well", "jpeg", workers=0)
    assert stepwell.open(tmp_path / "x.well").verify(deep=True).is_ok
    assert not (folder / "x.well").exists() and not (tmp_path / "x.well" / "segments" / "y.well").exists()


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("codecs", [{}, "jpeg"])
def test_what_a_kill_leaves_is_there_whole_or_goes(resume, codecs, folder, tmp_path):
    killed(lambda: convert(Fetching(folder, 2, kill), tmp_path / "x.well", codecs, workers=0, resume=resume))
    assert (tmp_path / "x.well").exists() == resume
    assert list(tmp_path.glob(".x.well.*/fetched/fetched"))
    convert(folder, tmp_path / "x.well", codecs, workers=0, resume=resume)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "x.well"]
    assert [episode.length for episode in stepwell.open(tmp_path / "x.well")] == list(LENGTHS)


def test_another_conversion_to_the_same_target_is_refused_and_leaves_what_was_fetched(folder, tmp_path):
    def convert_too(reader):
        with pytest.raises(StoreBusyError, match="is being recorded by another process"):
            convert(folder, tmp_path / "x.well", workers=0)
        assert (reader.scratch / "fetched").exists()

    assert convert(Fetching(folder, end=convert_too), tmp_path / "x.well", workers=0).num_episodes == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "x.well"]


def test_a_target_that_is_a_link_is_made_where_it_leads(folder, tmp_path):
    def fail(reader):
        raise ValueError("not readable")

    (tmp_path / "disk").mkdir()
    link = tmp_path / "x.well"
    link.symlink_to(tmp_path / "disk" / "y.well")
    for resume in (True, False):
        with pytest.raises(WorkerError, match="not readable"):
            convert(Fetching(folder, 0, fail), link, workers=0, resume=resume)
        assert not list((tmp_path / "disk").iterdir())
        assert convert(folder, link, workers=0, resume=resume).path == link
        assert len(stepwell.open(link)) == 4
        shutil.rmtree(tmp_path / "disk" / "y.well")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "set", "x.well"]


def test_progress_counts_the_bytes_of_rows_that_are_taken_as_they_are(folder, tmp_path, monkeypatch):
    counted = []
    update = RateBar.show

    def noted(self, *numbers):
        counted.append(numbers[2])
        update(self, *numbers)

    monkeypatch.setattr(RateBar, "show", noted)
    convert(folder, tmp_path / "x.well", workers=1)
    store = stepwell.open(tmp_path / "x.well")
    pictures_bytes = sum((segment.path / "top.bin").stat().st_size for segment in store.segments)
    assert counted[-1] == pictures_bytes + 8 * sum(LENGTHS)


def test_the_report_is_a_table_and_json(folder, tmp_path):
    report = convert(folder, tmp_path / "x.well", features="jpeg", workers=1)
    lines = str(report).splitlines()
    assert lines[0].startswith("x.well: 4 episodes  19 steps  in ")
    assert lines[1].split() == ["feature", "from", "to", "ratio", "PSNR", "worst"]
    assert [line.split()[0] for line in lines[2:]] == ["top", "action", "all"]
    assert " png " in lines[2] and " jpeg " in lines[2] and " dB at " in lines[2] and " copied " in lines[3]
    record = json.loads(json.dumps(report.to_json()))
    assert record["features"]["top"]["after"]["codec"] == "jpeg" and record["bytes_after"] == report.bytes_after
    assert 20 < record["features"]["top"]["psnr_db"] < 80
    assert pickle.loads(pickle.dumps(report)) == report


class SpannedSamples(Reader):
    """Samples of plain rows in one file, read four at a time."""

    name, schema = "spanned", Schema({"state": Array(2)})

    @classmethod
    def accepts(cls, source):
        return False

    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise ValueError("they are read many at a time")

    def episode_bytes(self, schema):
        return 8

    def one_step_episodes(self, start, stop):
        offsets = 8 * np.arange(start, min(start + 4, stop))
        return {"state": FileSpans(Array(2), [self.source], 0, offsets, np.full(len(offsets), 8))}


def test_plain_spans_are_imported_many_at_a_time(tmp_path):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    values.tofile(tmp_path / "rows.bin")
    convert(SpannedSamples(str(tmp_path / "rows.bin")), tmp_path / "x.well", workers=1)
    assert [episode["state"][0].tolist() for episode in stepwell.open(tmp_path / "x.well")] == values.tolist()
