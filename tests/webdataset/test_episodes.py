"""Shards of episodes: written and read back to the same store, whatever it holds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shards import picture, write_tar  # type: ignore[import-not-found]

import stepwell
from stepwell import Array, Bytes, Image, Text, convert
from stepwell.errors import FormatError, StepwellError
from stepwell.formats import find_reader
from stepwell.references.file_spans import make_spans
from stepwell.testing import check_damage
from stepwell.webdataset import EpisodeShardsReader, WebDatasetReader, write_webdataset

SCHEMA = {
    "camera": Image((24, 32, 3), codec="jpeg", quality=90, final=True),
    "raw": Image((24, 32, 3)),
    "depth": Image((8, 8), "float32", final=True),
    "label": Array((), "int64"),
    "arm.action": Array(3, names=["x", "y", "z"]),
    "points": Array((None, 2), "int16", final=True),
    "note": Text(),
    "blob": Bytes(),
}


def columns_of(number: int, length: int, finals: int) -> dict[str, Any]:
    whole = np.arange(length + finals) + 10 * number
    steps = whole[:length]
    return {
        "camera": np.stack([picture(n) for n in whole]),
        "raw": np.stack([picture(n) for n in steps]),
        "depth": np.ones((len(whole), 8, 8), "f4") * whole[:, None, None].astype("f4"),
        "label": steps,
        "arm.action": np.ones((length, 3), "f4") * steps[:, None].astype("f4"),
        "points": [np.full((n % 3, 2), n, "i2") for n in whole],
        "note": [f"ä{n}" for n in steps],
        "blob": [bytes([n % 256]) * 3 for n in steps],
    }


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    pytest.importorskip("simplejpeg")
    pytest.importorskip("imagecodecs")
    made = stepwell.create(tmp_path / "a.well", SCHEMA, fps=10)
    with made.writer() as writer:
        for number, (length, finals) in enumerate(((4, 1), (1, 0), (6, 1))):
            writer.add_episode(
                columns_of(number, length, finals), terminated=number == 0, truncated=number == 2, task=f"lift {number}"
            )
    return made


def contents(store: stepwell.Store) -> list[Any]:
    table = store.episodes
    return [
        (
            {name: [np.asarray(value).tolist() for value in episode[name]] for name in SCHEMA},
            episode.metadata,
            bool(table.terminated[number]),
            bool(table.truncated[number]),
            int(table.rows[number]),
        )
        for number, episode in enumerate(store)
    ]


@pytest.mark.parametrize("way", ["import", "in place"])
def test_episodes_are_read_back_to_the_same_store(store: stepwell.Store, tmp_path: Path, way: str) -> None:
    shards = write_webdataset(store, tmp_path / "shards", samples="episodes", shard_samples=2, workers=1)
    assert len(shards) == 2 and find_reader(tmp_path / "shards") is EpisodeShardsReader
    reader = EpisodeShardsReader(str(tmp_path / "shards"))
    assert reader.edges.tolist() == [0, 2] and reader.label(2).startswith("sample 000002 of ")
    kept = {name: feature for name, feature in SCHEMA.items() if name != "raw"}
    assert {name: reader.schema[name] for name in kept} == kept and reader.schema["raw"].codec == "png"
    if way == "import":
        convert(tmp_path / "shards", tmp_path / "b.well", workers=1)
        back = stepwell.open(tmp_path / "b.well")
    else:
        back = stepwell.open(f"webdataset-episodes://{tmp_path}/shards")
        assert back.schema is not None and back.schema["camera"].codec == back.schema["arm.action"].codec == "file-span"
    assert contents(back) == contents(store)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4), st.integers(1, 3))
def test_lengths_and_shards_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, bool]], each: int
) -> None:
    folder = tmp_path_factory.mktemp("lengths")
    made = stepwell.create(folder / "a.well", {"x": Array(2, final=True), "text": Text()})
    with made.writer() as writer:
        for number, (length, has_final) in enumerate(lengths):
            x = np.full((length + has_final, 2), number, "f4")
            writer.add_episode({"x": x, "text": [f"{number}"] * length}, number=number)
    write_webdataset(made, folder / "shards", samples="episodes", shard_samples=each, workers=0)
    convert(folder / "shards", folder / "b.well", workers=1)
    back = stepwell.open(folder / "b.well")
    assert back.episodes.rows.tolist() == made.episodes.rows.tolist() == [n + final for n, final in lengths]
    assert [episode.metadata for episode in back] == [{"number": number} for number in range(len(lengths))]


def test_samples_without_what_tells_of_episodes_are_refused(tmp_path: Path) -> None:
    facts = {"length": 2, "terminated": False, "truncated": False, "final": False, "metadata": {}}
    features = {"features": {"txt": Text().to_json(), "x": Array().to_json()}}
    whole = json.dumps(facts | features).encode()
    for members, words in (
        ([("0.txt", b"")], r"sample 0 has no member \.episode\.json"),
        ([("0.episode.json", b"{}")], r"0\.episode\.json, byte 512: not what an episode is told by"),
        ([("0.episode.json", whole.replace(b"2", b'"2"', 1))], "length '2'"),
        ([("0.episode.json", whole), ("0.txt.000001.txt", b"")], "1 members of 'txt'"),
        (
            [("0.episode.json", whole), ("0.txt.000000.txt", b""), ("0.txt.000001.txt", b"")],
            r"0\.x\.npy, byte 0: not a",
        ),
    ):
        path = write_tar(tmp_path / "a.tar", members)
        with pytest.raises(FormatError, match=words):
            list(EpisodeShardsReader(str(path)).episodes())


def test_steps_and_episodes_are_told_apart(store: stepwell.Store, tmp_path: Path) -> None:
    write_webdataset(store, tmp_path / "steps", features=["note"], workers=1)
    assert find_reader(tmp_path / "steps") is WebDatasetReader
    with pytest.raises(StepwellError, match="rename= is for"):
        write_webdataset(store, tmp_path / "b", samples="episodes", rename={"note": "txt"}, workers=1)
    with pytest.raises(StepwellError, match="samples='frames'"):
        write_webdataset(store, tmp_path / "b", samples="frames", workers=1)  # type: ignore[arg-type]


def test_processes_write_the_same_bytes(store: stepwell.Store, tmp_path: Path) -> None:
    one, two = (
        write_webdataset(store, tmp_path / str(workers), samples="episodes", shard_samples=1, workers=workers)
        for workers in (1, 2)
    )
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_damaged_shards_are_refused_or_read(store: stepwell.Store, tmp_path: Path) -> None:
    features = ["camera", "points", "label", "note"]
    (path,) = write_webdataset(store, tmp_path / "shards", samples="episodes", features=features, workers=1)

    def read(path: Path) -> None:
        reader = EpisodeShardsReader(str(path))
        for episode in reader.episodes():
            for name, column in episode.columns.items():
                if hasattr(column, "rows") and not reader.schema[name].is_raw:
                    list(column.rows(reader.schema[name]))

    read(path)
    report = check_damage(path, read, count=150)
    assert set(report.errors) <= {"FormatError", "DecodeError"} and report.num_read > 0


def test_shards_cannot_make_a_store_in_the_cache_that_refers_to_files_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    span = make_spans(0, 0, 16).tobytes()
    facts = {
        "length": 1,
        "terminated": False,
        "truncated": False,
        "final": False,
        "fps": None,
        "uuid": "",
        "metadata": {},
        "features": {
            "x": {
                "kind": "bytes",
                "dtype": "|u1",
                "shape": [None],
                "codec": "file-span",
                "options": {"root": str(tmp_path), "files": "secret", "format": "raw"},
            }
        },
    }
    path = tmp_path / "a-000000.tar"
    write_tar(path, [("0.episode.json", json.dumps(facts).encode()), ("0.x.000000", span), ("0.x.0.bin", span)])
    for read in (
        lambda: stepwell.open(f"webdataset-episodes://{path}")[0]["x"],
        lambda: convert(path, tmp_path / "b.well", reader="webdataset-episodes", workers=1),
    ):
        with pytest.raises(FormatError, match="refers to other files"):
            read()
