"""Damage to tiny LeRobot datasets: one thing at a time, with pyarrow and json alone."""

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.testing.lerobot import tiny_lerobot

CAMERA = "observation.images.top"
LENGTHS = (5, 7, 6)


# a sound set is written once and copied: writing one takes longer than what is tested
_WRITTEN = tempfile.TemporaryDirectory()


def tiny_set(path, **options):
    """A tiny set of one's own below `path`, to damage."""
    cameras = tuple(sorted(options.pop("cameras", {}).items()))
    options["lengths"] = tuple(options.get("lengths", LENGTHS))
    return Path(shutil.copytree(_written(cameras, tuple(sorted(options.items()))), path / "set"))


@lru_cache
def _written(cameras, options):
    number = len(list(Path(_WRITTEN.name).iterdir()))
    return tiny_lerobot(Path(_WRITTEN.name) / str(number), cameras=dict(cameras), **dict(options))


def data_files(root):
    return sorted((root / "data").glob("*/*.parquet"))


def episode_files(root):
    return sorted((root / "meta/episodes").glob("*/*.parquet"))


def change_column(path, name, change):
    """Replace a column of a parquet file by what `change` makes of its values, a list."""
    table = pq.read_table(path)
    field = table.schema.field(name)
    values = pa.array(change(table.column(name).to_pylist()), field.type)
    pq.write_table(table.set_column(table.column_names.index(name), field, values), path)


def change_type(path, name, arrow_type, values=None):
    """Replace a column of a parquet file by one of another type."""
    table = pq.read_table(path)
    column = pa.array(table.column(name).to_pylist() if values is None else values, arrow_type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


def change_rows(root, name, rows, *, file=0):
    """Replace values of a column of a data file: {row of the file: value}."""
    change_column(data_files(root)[file], name, lambda values: [rows.get(i, value) for i, value in enumerate(values)])


def change_table(path, change):
    """Replace a parquet file by what `change` makes of its table."""
    pq.write_table(change(pq.read_table(path)), path)


def change_episodes(root, **changes):
    """Replace values in the table of episodes of one file: name={episode: value}, "/" written "__"."""
    (path,) = episode_files(root)
    for name, rows in changes.items():
        column = name.replace("__", "/")
        change_column(path, column, lambda values, rows=rows: [rows.get(i, value) for i, value in enumerate(values)])


def change_json(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def change_lines(path, change):
    """Replace the objects of a file of JSON lines by what `change` makes of the list of them."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def set_span(root, camera, episode, **values):
    """Change where an episode is said to lie in a camera's files."""
    change_episodes(root, **{f"videos/{camera}/{name}": {episode: value} for name, value in values.items()})


def cut_off(path, share=0.5):
    """Cut a file off, as a recorder that was killed leaves it."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def found(report, *, unchecked=()):
    """What a report says: {code: affected episodes}; what could not be looked at must begin as said."""
    assert [line.partition(":")[0] for line in report.unchecked] == list(unchecked)
    codes = {}
    for finding in report.findings:
        codes.setdefault(finding.code, set()).update(finding.episodes.tolist())
    return {code: sorted(episodes) for code, episodes in codes.items()}
