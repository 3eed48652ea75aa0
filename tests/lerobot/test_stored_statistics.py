"""Stored statistics are read as they are; those of v2.1's episodes are merged to those of the whole."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.statistics import merged
from stepwell.testing import tiny_lerobot, tiny_lerobot_rows

pytest.importorskip("pyarrow")
pytest.importorskip("av")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
LENGTHS = [4, 6, 3]


def tiny(root: Path, version: str = "v3.0", **options: Any) -> Path:
    return tiny_lerobot(root, version=version, lengths=LENGTHS, cameras={"top": ("png", (8, 8))}, **options)


def rewrite_lines(root: Path, change: Any) -> None:
    path = root / "meta" / "episodes_stats.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(record) for record in change(records)))


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_statistics_of_the_whole_are_those_of_all_rows(tmp_path: Path, version: str) -> None:
    stats = Metadata.load(tiny(tmp_path / "tiny", version)).stats
    assert stats is not None
    rows = np.concatenate([tiny_lerobot_rows(e, n)["action"] for e, n in enumerate(LENGTHS)]).astype(np.float64)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(stats["action"][name], getattr(rows, name)(0), rtol=1e-12)
    assert stats["action"]["count"].tolist() == [13]
    assert (stats["top"]["mean"].shape, stats["top"]["mean"].dtype) == ((3, 1, 1), np.float64)
    assert "observation.note" not in stats


@pytest.mark.parametrize(("version", "files"), [("v2.1", 1), ("v3.0", 1), ("v3.0", 3)])
def test_statistics_of_an_episode_are_those_of_its_rows(tmp_path: Path, version: str, files: int) -> None:
    metadata = Metadata.load(tiny(tmp_path / "tiny", version, files=files))
    for episode, length in enumerate(LENGTHS):
        stats = metadata.episode_stats(episode)
        assert stats is not None
        rows = tiny_lerobot_rows(episode, length)
        np.testing.assert_allclose(stats["action"]["mean"], rows["action"].mean(0), rtol=1e-6)
        assert stats["observation.grid"]["max"].tolist() == rows["observation.grid"].max(0).tolist()
        assert stats["top"]["std"].shape == (3, 1, 1)


def test_dataset_without_statistics_has_none(tmp_path: Path) -> None:
    for version, name in (("v2.0", "stats.json"), ("v2.1", "episodes_stats.jsonl"), ("v3.0", "stats.json")):
        root = tiny(tmp_path / version, version)
        (root / "meta" / name).unlink()
        assert Metadata.load(root).stats is None
    assert Metadata.load(tmp_path / "v2.0").episode_stats(0) is None
    assert Metadata.load(tmp_path / "v2.1").episode_stats(0) is None


def test_v3_table_without_statistics_has_none(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    root = tiny(tmp_path / "tiny")
    path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.select([name for name in table.column_names if not name.startswith("stats/")]), path)
    assert Metadata.load(root).episode_stats(2) is None


def test_quantiles_are_not_merged() -> None:
    part = {"x": {name: [1.0] for name in ("min", "max", "mean", "std", "count", "q50")}}
    found = merged([part, part], "x")
    assert found is not None
    assert "q50" not in found["x"]


def test_feature_that_some_episodes_lack_is_merged_over_the_others() -> None:
    one, two = ({"x": {name: [value] for name in ("min", "max", "mean", "std", "count")}} for value in (1, 3))
    found = merged([{}, one, two], "x")
    assert found is not None
    assert found["x"]["count"].tolist() == [4]
    assert merged([], "x") is None


@pytest.mark.parametrize(
    "content", ["[]", '{"action": 3}', '{"action": {"mean": "x"}}', '{"action": {"mean": [[1], 2]}}']
)
def test_stats_json_that_cannot_be_is_refused(tmp_path: Path, content: str) -> None:
    root = tiny(tmp_path / "tiny")
    (root / "meta" / "stats.json").write_text(content)
    with pytest.raises(FormatError, match=r"stats\.json"):
        _ = Metadata.load(root).stats


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda records: [records[0], records[0], records[2]], "does not have each episode once"),
        (lambda records: [{"episode_index": 0}], "is not statistics"),
        (lambda records: [{"episode_index": 0, "stats": {"x": 3}}], "'x' lacks some of min"),
        (lambda records: [{"episode_index": 0, "stats": {"x": {"mean": [1.0]}}}], "'x' lacks some of min"),
        (lambda records: [of_x(mean=[1.0], std=[1.0, 2.0, 3.0]), of_x(1)], "mean of 'x' is not an array"),
        (lambda records: [of_x(count=[1, 2])], "shapes of 'x' do not fit together"),
        (lambda records: [of_x(mean="x")], "mean of 'x' is not an array of numbers"),
    ],
)
def test_lines_that_cannot_be_merged_are_refused(tmp_path: Path, change: Any, says: str) -> None:
    root = tiny(tmp_path / "tiny", "v2.1")
    rewrite_lines(root, change)
    with pytest.raises(FormatError, match=f"episodes_stats.jsonl.*{says}"):
        _ = Metadata.load(root).stats


def of_x(episode: int = 0, **values: Any) -> dict[str, Any]:
    names = ("min", "max", "mean", "std", "count")
    return {"episode_index": episode, "stats": {"x": {**{name: [1.0, 2.0] for name in names}, "count": [3], **values}}}


def test_lines_of_episodes_may_be_in_any_order(tmp_path: Path) -> None:
    root = tiny(tmp_path / "tiny", "v2.1")
    before = [Metadata.load(root).episode_stats(place) for place in range(3)]
    rewrite_lines(root, lambda records: records[::-1])
    after = [Metadata.load(root).episode_stats(place) for place in range(3)]
    assert all(one and two for one, two in zip(before, after, strict=True))
    for one, two in zip(before, after, strict=True):
        assert (one or {})["action"]["mean"].tolist() == (two or {})["action"]["mean"].tolist()


@needs_data
def test_merged_statistics_of_a_real_dataset_are_those_of_its_newer_form() -> None:
    old, new = Metadata.load(SHARED / "v21_png").stats, Metadata.load(SHARED / "v30_png").stats
    assert old is not None
    assert new is not None
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(old["observation.state"][name], new["observation.state"][name], rtol=1e-4, atol=1e-5)
