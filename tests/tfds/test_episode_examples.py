"""Episodes as Examples: the flags of RLDS, the last observation as a step of its own, and trees of features."""

import numpy as np
import pytest

import stepwell
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.formats.source_episodes import as_view, episodes_of
from stepwell.schema import Array, Image, Schema, Text
from stepwell.tfds import episode_examples
from stepwell.tfds.episode_examples import EpisodeExamples, StepExamples, encode_all, nested, runs_of
from stepwell.tfds.examples import ExampleKeys
from stepwell.tfds.features import Fields, Leaf, Repeated
from stepwell.tfds.step_forms import step_columns

FLAGS = ["is_first", "is_last", "is_terminal"]
SCHEMA = {"observation": Array(2, final=True), "action": Array((), "int64"), "task": Text()}


def episode_of(tmp_path, schema=SCHEMA, columns=None, **ends):
    columns = columns or {
        "observation": np.arange(8, dtype="f4").reshape(4, 2),
        "action": np.arange(1, 4),
        "task": ["a", "b", "c"],
    }
    store = stepwell.create(tmp_path / "a.well", schema)
    with store.writer() as writer:
        writer.add_episode(columns, **ends)
    store.refresh()
    (episode,) = episodes_of(as_view(store))
    return episode


def parsed(examples, episode, keys):
    (record,) = examples.encode(episode)
    return ExampleKeys(keys).locate(np.frombuffer(record, np.uint8))


def flags_of(examples, episode):
    found = parsed(examples, episode, [f"steps/{name}" for name in FLAGS])
    return [found.ints(f"steps/{name}", bool).astype(int).tolist() for name in FLAGS]


@pytest.mark.parametrize("feature", [Array(2, "bool"), Array(()), Text()])
def test_a_flag_of_rlds_is_a_bool(feature):
    columns = step_columns(Schema({"done": feature}), rename={"done": "is_last"})
    with pytest.raises(SchemaError, match=r"'done' as 'is_last': in RLDS it is a bool of each step\. .*rename="):
        EpisodeExamples(columns)
    assert StepExamples(columns).columns == columns


@pytest.mark.parametrize("terminated", [False, True])
def test_the_last_observation_is_a_last_step_with_zeros(tmp_path, terminated):
    episode = episode_of(tmp_path, terminated=terminated)
    examples = EpisodeExamples(step_columns(episode.store.schema))
    found = parsed(examples, episode, ["steps/observation", "steps/action", "steps/task"])
    assert found.floats("steps/observation").tolist() == list(range(8))
    assert found.ints("steps/action").tolist() == [1, 2, 3, 0]
    assert found.strings("steps/task") == [b"a", b"b", b"c", b""]
    assert flags_of(examples, episode) == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, int(terminated)]]


def test_without_one_the_last_step_is_the_last_action(tmp_path):
    columns = {"observation": np.zeros((3, 2), "f4"), "action": np.arange(1, 4), "task": ["a"] * 3}
    episode = episode_of(tmp_path, columns=columns, terminated=True)
    examples = EpisodeExamples(step_columns(episode.store.schema))
    assert parsed(examples, episode, ["steps/action"]).ints("steps/action").tolist() == [1, 2, 3]
    assert flags_of(examples, episode) == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_an_episode_of_one_step_is_first_and_last(tmp_path):
    columns = {"observation": np.zeros((1, 2), "f4"), "action": np.array([1]), "task": ["a"]}
    episode = episode_of(tmp_path, columns=columns)
    assert flags_of(EpisodeExamples(step_columns(episode.store.schema)), episode) == [[1], [1], [0]]


def test_flags_of_the_store_are_kept_where_no_final_row_makes_them_wrong(tmp_path):
    schema = {"steps.is_first": Array((), "bool"), "x": Array(final=True)}
    odd = np.array([False, True, False])
    (tmp_path / "b").mkdir()
    plain = episode_of(tmp_path, schema, {"steps.is_first": odd, "x": np.zeros(3, "f4")})
    final = episode_of(tmp_path / "b", schema, {"steps.is_first": odd, "x": np.zeros(4, "f4")})
    examples = EpisodeExamples(step_columns(plain.store.schema))
    assert flags_of(examples, plain)[0] == [0, 1, 0]
    assert flags_of(examples, final)[0] == [1, 0, 0, 0]
    steps = examples.tree.features["steps"]
    assert sorted(steps.feature.features) == [*FLAGS, "x"]


def test_steps_are_examples_of_their_own(tmp_path):
    episode = episode_of(tmp_path)
    examples = StepExamples(step_columns(episode.store.schema))
    records = [np.frombuffer(record, np.uint8) for record in examples.encode(episode)]
    found = [ExampleKeys(["action", "task"]).locate(record) for record in records]
    assert [(one.ints("action").tolist(), one.strings("task")) for one in found] == [
        ([1], [b"a"]),
        ([2], [b"b"]),
        ([3], [b"c"]),
    ]
    assert examples.tree == Fields(
        {
            "observation": Leaf("tensor", "float32", (2,)),
            "action": Leaf("tensor", "int64"),
            "task": Leaf("text", "string"),
        }
    )


def test_an_example_that_tensorflow_cannot_read_is_refused(tmp_path, monkeypatch):
    episode = episode_of(tmp_path)
    monkeypatch.setattr(episode_examples, "MAX_EXAMPLE_BYTES", 100)
    with pytest.raises(StepError, match=r"a\.well: episode 0 makes an Example of \d+ bytes.* cut the episode"):
        list(EpisodeExamples(step_columns(episode.store.schema)).encode(episode))


def test_trees_nest_and_refuse_two_things_in_one_place():
    leaf = Leaf("text", "string")
    assert nested([("a/b", leaf), ("a/c", Repeated(leaf))]) == Fields({"a": Fields({"b": leaf, "c": Repeated(leaf)})})
    for paths in (["a", "a"], ["a", "a/b"], ["a/b", "a"]):
        with pytest.raises(SchemaError, match="Rename one of them"):
            nested([(path, leaf) for path in paths])


def short_store(tmp_path, lengths, finals=()):
    schema = {"image": Image((8, 8, 3), codec="zstd"), "x": Array(final=True), "note": Text()}
    rng = np.random.default_rng(0)
    store = stepwell.create(tmp_path / "short.well", schema)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            writer.add_episode(
                {
                    "image": rng.integers(0, 256, (length, 8, 8, 3), "u1"),
                    "x": rng.normal(size=length + (number in finals)).astype("f4"),
                    "note": [f"{number} {step}" for step in range(length)],
                },
                number=number,
            )
    store.refresh()
    return store


@pytest.mark.parametrize("kind", [EpisodeExamples, StepExamples])
def test_short_episodes_are_read_together_and_make_the_same_records(tmp_path, kind):
    store = short_store(tmp_path, [1, 2, 1, 70, 1, 1, 40, 40, 1], finals=[4])
    examples = kind(step_columns(store.schema))
    episodes = list(episodes_of(as_view(store)))
    runs = list(runs_of(episodes))
    assert [[episode.index for episode in run] for run in runs] == [[0, 1, 2], [3], [4], [5, 6], [7, 8]]
    found = [records for run in runs for records in encode_all(examples, run)]
    assert found == [list(examples.encode(episode)) for episode in episodes]


def test_episodes_that_do_not_lie_back_to_back_are_read_alone(tmp_path):
    store = short_store(tmp_path, [2] * 6)
    episodes = list(episodes_of(stepwell.View(store).select([0, 1, 3, 5])))
    assert [[episode.index for episode in run] for run in runs_of(episodes)] == [[0, 1], [3], [5]]
    assert list(runs_of([])) == []


def test_a_damaged_row_among_short_episodes_is_told_with_its_own_episode(tmp_path):
    store = short_store(tmp_path, [1] * 6)
    (segment,) = store.segments
    begin = int(segment.offsets_map("image")[3])
    path = segment.path / "image.bin"
    store.close()
    data = bytearray(path.read_bytes())
    data[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(data)
    opened = stepwell.open(store.path, mode="r")
    (run,) = runs_of(episodes_of(as_view(opened)))
    with pytest.raises(DecodeError, match=r"short\.well: episode 3, step 0"):
        list(encode_all(EpisodeExamples(step_columns(opened.schema)), run))
