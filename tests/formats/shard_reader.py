"""A reader of shards: a binary file each, and one list of episodes; a module of its own, so that others import it."""

import json
from pathlib import Path

import numpy as np

from stepwell import Array, EpisodeData, Image, Schema, Text
from stepwell.codecs import make_codec
from stepwell.formats import Reader, register_reader
from stepwell.references.file_spans import FileSpans, make_spans, span_feature
from stepwell.store.bulk_writing import Blobs, EpisodeBlock

SHAPE = (12, 16, 3)
IMAGE = Image(SHAPE, codec="png", final=True)
STATE = Array((4, 3))
NOTE = Text()


def values_of(episode, length):
    """Return images of an episode (one more than steps), states and notes."""
    rng = np.random.default_rng(episode)
    images = rng.integers(0, 255, (length + 1, *SHAPE), np.uint8)
    notes = [f"{episode}/{step}" * (step % 3) for step in range(length)]
    return images, rng.random((length, 4, 3), np.float32), notes


def write_shards(folder, shards=((3, 1, 4), (2, 2), (5,))):
    """Write a folder that `ShardReader` reads: of each shard the lengths of its episodes."""
    folder.mkdir()
    encode, told, number = make_codec(IMAGE).encode, [], 0
    for shard, lengths in enumerate(shards):
        data = bytearray(b"head")
        for length in lengths:
            places = {}
            images, states, notes = values_of(number, length)
            blobs = {
                "image": [encode(image) for image in images],
                "state": [state.tobytes() for state in states],
                "note": [note.encode() for note in notes],
            }
            for name, rows in blobs.items():
                places[name] = []
                for row in rows:
                    places[name].append((len(data), len(row)))
                    data += row
            told.append({"shard": shard, "length": length, **places})
            number += 1
        (folder / f"shard-{shard}.bin").write_bytes(data)
    (folder / "shards.json").write_text(json.dumps(told))
    return folder


def shard_paths(source):
    return list(map(str, sorted(Path(source).glob("shard-*.bin"))))


@register_reader
class ShardReader(Reader):
    """Episodes of spans."""

    name = "shards"

    def __init__(self, source, *, notes="yes", bulk=False):
        super().__init__(source)
        self._told = json.loads(Path(source, "shards.json").read_text())
        self._paths = shard_paths(source)
        self._is_bulk = bool(bulk)
        features = {"image": IMAGE, "state": STATE, "index": Array((), "int64")}
        if self._is_bulk:
            features["image"] = IMAGE.with_final(False)
        self.schema = Schema(features | ({"note": NOTE} if notes == "yes" else {}))
        self.fps, self.metadata = 5.0, {"from": "shards"}

    @classmethod
    def accepts(cls, source):
        return Path(source, "shards.json").is_file()

    @classmethod
    def files(cls, source, **options):
        return [*shard_paths(source), f"{source}/shards.json"]

    def __len__(self):
        return len(self._told)

    def __getitem__(self, index):
        told = self._told[index]
        columns = {"index": np.arange(told["length"]) + 100 * index}
        for name in set(self.schema) - {"index"}:
            count = told["length"] + bool(self.schema[name].final)
            offsets, sizes = np.array(told[name][:count]).reshape(-1, 2).T
            columns[name] = FileSpans(self.schema[name], self._paths, told["shard"], offsets, sizes)
        return EpisodeData(columns, index % 2 == 0, index % 3 == 0, {"number": index})

    @property
    def in_place_schema(self):
        return Schema(
            {
                name: feature if name == "index" else span_feature(feature, self._paths)
                for name, feature in self.schema.items()
            }
        )

    @property
    def edges(self):
        shards = np.array([told["shard"] for told in self._told])
        return np.flatnonzero(np.diff(shards, prepend=-1))

    def blocks(self):
        return self._blocks() if self._is_bulk else None

    def _blocks(self):
        for index, told in enumerate(self._told):
            length = told["length"]
            columns = {"index": np.arange(length) + 100 * index}
            for name in set(self.schema) - {"index"}:
                offsets, sizes = np.array(told[name][:length]).reshape(-1, 2).T
                spans = make_spans(told["shard"], offsets, sizes)
                columns[name] = Blobs(spans.reshape(-1), np.full(length, 16))
            ends = np.array([index % 2 == 0]), np.array([index % 3 == 0])
            yield EpisodeBlock(np.array([length]), columns, [{"number": index}], *ends)
