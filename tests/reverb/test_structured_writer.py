"""Items by patterns, and the same patterns over a stream of steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reverb_samples import drained

from stepwell import reverb
from stepwell.reverb import structured

Serve = Callable[..., tuple[reverb.Server, reverb.Client]]
STEP = {"a": None, "b": {"c": None, "d": None}}
Condition = structured.Condition


def made_by(serve: Serve, configs: list[structured.Config], count: int, *, ends: int = 0) -> list[list[Any]]:
    """Return the items that configs make of ``count`` steps: a counts them, c is ten times that."""
    _, client = serve(reverb.Table.queue("queue", 1000))
    with client.structured_writer(configs) as writer:
        for number in range(count):
            writer.append({"a": np.int64(number), "b": {"c": np.int64(10 * number), "d": np.float64(-number)}})
            if ends and number % ends == ends - 1:
                writer.end_episode()
    return [[np.asarray(column).tolist() for column in sample.data] for sample in drained(client, "queue")]


def config_of(transform: Callable[[Any], Any], *conditions: Any, **options: Any) -> structured.Config:
    pattern = structured.pattern_from_transform(STEP, transform)
    return structured.create_config(pattern, "queue", conditions, **options)


def test_patterns_are_slices_of_the_newest_steps(serve: Serve) -> None:
    config = config_of(lambda step: {"x": step["a"][-3:], "y": step["b"]["c"][-2], "z": step["a"][-5:-1:2]})
    assert made_by(serve, [config], 7) == [
        [[2, 3, 4], 30, [0, 2]],
        [[3, 4, 5], 40, [1, 3]],
        [[4, 5, 6], 50, [2, 4]],
    ]


@pytest.mark.parametrize(
    ("conditions", "firsts"),
    [
        ([Condition.step_index() >= 2, Condition.step_index() % 2 == 0], [2, 4, 6]),
        ([Condition.step_index() < 2], [0, 1]),
        ([Condition.step_index() <= 2], [0, 1, 2]),
        ([Condition.step_index() > 5], [6, 7]),
        ([Condition.step_index() != 3, Condition.step_index() >= 3], [4, 5, 6, 7]),
        ([Condition.steps_since_applied() >= 3], [2, 5]),
        ([Condition.data(STEP)["b"]["c"] % 20 == 0], [0, 2, 4, 6]),
        ([Condition.data(STEP)["b"]["d"] == 0], []),
    ],
)
def test_all_conditions_must_hold(serve: Serve, conditions: list[Any], firsts: list[int]) -> None:
    config = config_of(lambda step: [step["a"][-1]], *conditions)
    assert made_by(serve, [config], 8) == [[number] for number in firsts]


def test_items_at_the_end_of_an_episode_come_with_it(serve: Serve) -> None:
    at_end = config_of(lambda step: [step["a"][-2:]], Condition.is_end_episode())
    plain = config_of(lambda step: [step["a"][-1]], Condition.step_index() == 0)
    assert made_by(serve, [at_end, plain], 6, ends=3) == [[0], [[1, 2]], [3], [[4, 5]]]


def test_partial_steps_make_an_item_once(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("queue", 10))
    config = config_of(lambda step: [step["a"][-1]])
    both = config_of(lambda step: [step["a"][-1], step["b"]["c"][-1]])
    with client.structured_writer([config, both]) as writer:
        for number in range(2):
            writer.append({"a": number, "b": {"c": None, "d": None}}, partial_step=True)
            assert writer.step_is_open
            writer.append({"a": None, "b": {"c": number * 10, "d": None}})
            assert not writer.step_is_open
        with pytest.raises(ValueError, match="unexpected length"):
            writer.append({"a": 1})
    assert [[int(each) for each in sample.data] for sample in drained(client, "queue")] == [[0], [0, 0], [1], [1, 10]]


def test_priorities_follow_the_td_error(serve: Serve) -> None:
    priority = structured.td_error(0.9, STEP, lambda step: step["b"]["d"])
    config = config_of(lambda step: {"e": step["b"]["d"][-3:]}, priority=priority)
    _, client = serve(reverb.Table.queue("queue", 10))
    with client.structured_writer(
        [config, config_of(lambda s: {"e": s["a"][-1:]}, priority=structured.constant_priority_fn(4))]
    ) as writer:
        for number in range(3):
            writer.append({"a": number, "b": {"c": 0, "d": -float(number)}})
    priorities = [sample.info.priority for sample in drained(client, "queue")]
    assert priorities == pytest.approx([4, 4, 0.9 * 2 + 0.1 * 1, 4])


def test_signatures_are_inferred() -> None:
    spec = {
        "a": reverb.TensorSpec((), np.dtype(np.int64)),
        "b": {"c": reverb.TensorSpec((3,), np.dtype(np.float32)), "d": reverb.TensorSpec((3,), np.dtype(np.float32))},
    }
    first = config_of(lambda step: {"x": step["b"]["c"][-3:], "y": step["a"][-1]})
    other = config_of(lambda step: {"x": step["b"]["d"][-6::2], "y": step["a"][-1]})
    longer = config_of(lambda step: {"x": step["b"]["d"][-6:], "y": step["a"][-1]})
    same = structured.infer_signature([first, other], spec)
    assert (same["x"].shape, same["x"].dtype, same["y"].shape) == ((3, 3), np.float32, ())
    assert structured.infer_signature([first, longer], spec)["x"].shape == (None, 3)
    for configs, what in (
        ([], "At least one"),
        ([first, config_of(lambda step: {"x": step["a"][-1]})], "same pattern_structure"),
        ([first, config_of(lambda step: {"x": step["a"][-3:], "y": step["a"][-1]})], "multiple dtypes"),
        ([first, structured.create_config(first.pattern, "other")], "same table"),
    ):
        with pytest.raises(ValueError, match=what):
            structured.infer_signature(configs, spec)


@pytest.mark.parametrize("key", [0, 3, slice(0, None), slice(-1, -2), slice(-3, 1), slice(-3, None, 0), "a"])
def test_patterns_that_cannot_be_are_refused(key: Any) -> None:
    with pytest.raises(ValueError):
        structured.create_reference_step(STEP)["a"][key]


def test_a_stream_of_steps_gives_what_a_writer_gives(serve: Serve) -> None:
    configs = [
        config_of(lambda step: {"x": step["a"][-2:], "y": step["b"]["c"][-1]}, Condition.step_index() % 2 == 1),
        config_of(lambda step: {"x": step["a"][-3::2], "y": step["b"]["c"][-2]}, Condition.is_end_episode()),
    ]
    steps = [{"a": np.int64(n), "b": {"c": np.int64(10 * n), "d": np.float64(-n)}} for n in range(12)]
    items = reverb.PatternDataset(steps, configs, True, lambda step: step["a"] % 5 == 4)
    got = [[item["x"].tolist(), item["y"].tolist()] for item in items]
    assert got == made_by(serve, configs, 12, ends=5)
    assert len(got) > 5
    over = reverb.PatternDataset(steps, configs[1:], False, lambda step: step["a"] == 5)
    assert [item["x"].tolist() for item in over] == [[3, 5]]
