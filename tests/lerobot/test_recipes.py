"""Recipes: messages made of annotations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import SchemaError
from stepwell.lerobot.recipes import (
    DEFAULT_BINDINGS,
    EMITTED_AT_TOLERANCE_S,
    MessageTurn,
    TrainingRecipe,
    active_at,
    emitted_at,
    load_recipe,
    nth_next,
    nth_prev,
    render_sample,
)

SAY = [{"type": "function", "function": {"name": "say", "arguments": {"text": "on it"}}}]


def row(content: str | None, style: str | None, timestamp: float | None = None, **more: Any) -> dict[str, Any]:
    found = {"role": "assistant", "content": content, "style": style, "camera": None, "tool_calls": None, **more}
    return found if timestamp is None else {**found, "timestamp": timestamp}


SUBTASKS = [row("reach", "subtask", 0.0), row("grasp", "subtask", 1.0), row("lift", "subtask", 2.5)]


def turns(*texts: Any, **more: Any) -> list[MessageTurn]:
    *users, answer = texts
    return [MessageTurn("user", text, "high_level") for text in users] + [
        MessageTurn("assistant", answer, "high_level", target=True, **more)
    ]


def contents(rendered: Any) -> list[Any]:
    return [message.get("content") for message in rendered["messages"]]


def render(recipe: Any, **given: Any) -> Any:
    recipe = recipe if isinstance(recipe, TrainingRecipe) else TrainingRecipe(recipe)
    defaults = {"persistent": SUBTASKS, "events": [], "t": 1.2, "sample_idx": 0, "task": "pick"}
    return render_sample(recipe=recipe, **{**defaults, **given})


# which annotation is meant


@given(t=st.floats(-1, 5), offset=st.integers(1, 4), order=st.randoms())
def test_persistent_annotations_follow_each_other_in_time(t: float, offset: int, order: random.Random) -> None:
    rows = order.sample(SUBTASKS, 3)
    begun = [each for each in SUBTASKS if each["timestamp"] <= t]
    place = len(begun) - 1
    assert active_at(t, persistent=rows, style="subtask") == (begun[-1] if begun else None)
    assert nth_next(t, persistent=rows, style="subtask", offset=offset) == dict(enumerate(SUBTASKS)).get(place + offset)
    assert nth_prev(t, persistent=rows, style="subtask", offset=offset) == dict(enumerate(SUBTASKS)).get(place - offset)


@given(off=st.floats(-0.3, 0.3))
def test_an_annotation_begins_within_a_tenth_of_a_second(off: float) -> None:
    found = emitted_at(2.5 + off, persistent=SUBTASKS, events=[], style="subtask")
    assert (found is not None) == (abs(2.5 - (2.5 + off)) <= EMITTED_AT_TOLERANCE_S)


def test_events_are_those_of_the_item_chosen_by_role_tool_and_camera() -> None:
    events = [
        row("how many?", "vqa", role="user", camera="top"),
        row("3", "vqa", camera="top"),
        row("1", "vqa", camera="wrist"),
        row(None, None, tool_calls=SAY),
    ]
    common = {"persistent": [], "events": events}
    assert emitted_at(9.0, style="vqa", role="user", **common) is events[0]
    assert emitted_at(9.0, style="vqa", role="assistant", camera="wrist", **common) is events[2]
    assert emitted_at(9.0, tool_name="say", **common) is events[3]
    assert emitted_at(9.0, tool_name="look", **common) is None
    with pytest.raises(ValueError, match="Ambiguous"):
        emitted_at(9.0, style="vqa", role="assistant", **common)


@pytest.mark.parametrize("resolve", [active_at, nth_prev, nth_next])
@pytest.mark.parametrize(("style", "says"), [(None, "requires"), ("vqa", "event-only"), ("mood", "Unknown")])
def test_only_persistent_styles_last(resolve: Any, style: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        resolve(0.0, persistent=SUBTASKS, style=style)


# messages


def test_placeholders_are_filled_and_blocks_kept() -> None:
    block = {"type": "image", "feature": "observation.images.top", "size": 3}
    recipe = turns([block, {"type": "text", "text": "${task}: ${plan}!"}], "${subtask}")
    rendered = render(recipe)
    assert contents(rendered) == [[block, {"type": "text", "text": "pick: !"}], "grasp"]
    assert rendered["message_streams"] == ["high_level", "high_level"]
    assert rendered["target_message_indices"] == [1]
    assert recipe[0].content[1]["text"] == "${task}: ${plan}!"


def test_a_turn_is_left_out_and_tool_calls_are_copied() -> None:
    recipe = [
        *turns("${task}", "${memory}", if_present="memory"),
        MessageTurn("assistant", stream="low_level", tool_calls_from="speech", if_present="speech"),
    ]
    rendered = render(recipe, events=[row(None, None, tool_calls=SAY)])
    assert rendered["messages"][1] == {"role": "assistant", "tool_calls": SAY}
    assert rendered["messages"][1]["tool_calls"][0] is not SAY[0]
    assert rendered["target_message_indices"] == []
    assert render(recipe) is None


def test_defaults_that_nobody_uses_are_not_looked_for() -> None:
    events = [row("1", "vqa", camera="top"), row("2", "vqa", camera="wrist")]
    assert contents(render(turns("${task}", "${subtask}"), events=events))[1] == "grasp"
    bindings = {"vqa": "emitted_at(t, style=vqa, camera='wrist')"}
    assert contents(render(TrainingRecipe(turns("${task}", "${vqa}"), bindings), events=events))[1] == "2"


def test_the_task_is_the_given_one_a_wording_or_that_of_the_dataset() -> None:
    wordings = [row(text, "task_aug", 0.0, role="user") for text in ("take it", "fetch it", "get it")]
    recipe = turns("${task}", "x")
    assert contents(render(recipe, persistent=wordings))[0] == "pick"
    drawn = [contents(render(recipe, persistent=wordings, task=None, sample_idx=n))[0] for n in range(60)]
    assert set(drawn) == {"take it", "fetch it", "get it"}
    # as lerobot 0.6.2 draws them
    assert drawn[:6] == DRAWN_TASKS
    context = type("Context", (), {"task": "stack"})()
    assert contents(render(recipe, task=None, dataset_ctx={"task": "sort"}))[0] == "sort"
    assert contents(render(recipe, task=None, dataset_ctx=context))[0] == "stack"
    assert contents(render(recipe, task=None))[0] == ""


def test_parts_of_a_blend_come_by_weight_and_always_the_same() -> None:
    blend = {"a": {"weight": 3, "messages": turns("${task}", "a")}, "b": {"weight": 1, "messages": turns("x", "b")}}
    recipe = TrainingRecipe.from_dict({"blend": blend})
    drawn = [contents(render(recipe, sample_idx=number))[-1] for number in range(400)]
    assert 0.68 < drawn.count("a") / 400 < 0.82
    assert "".join(drawn[:16]) == DRAWN_PARTS
    assert drawn == [contents(render(recipe, sample_idx=number))[-1] for number in range(400)]


def test_a_routed_part_comes_first_where_it_has_annotations() -> None:
    routed = {"weight": 0.001, "route": "vqa", "messages": turns("${vqa_query}", "${vqa}", if_present="vqa")}
    recipe = TrainingRecipe.from_dict({"blend": {"low": {"weight": 9, "messages": turns("t", "low")}, "vqa": routed}})
    events = [row("3", "vqa")]
    assert {contents(render(recipe, events=events, sample_idx=number))[-1] for number in range(20)} == {"3"}
    assert {contents(render(recipe, sample_idx=number))[-1] for number in range(20)} == {"low"}


# what lerobot 0.6.2 draws
DRAWN_TASKS = ["take it", "get it", "fetch it", "take it", "get it", "get it"]
DRAWN_PARTS = "abaaaaabaabbaaab"


# what is refused


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ({"role": "robot", "content": "x", "stream": "low_level"}, "role"),
        ({"role": "user", "content": "x"}, "stream"),
        ({"role": "user", "content": "x", "stream": "middle"}, "stream"),
        ({"role": "user", "stream": "low_level"}, "content is required"),
        ({"role": "user", "content": [{"text": "x"}], "stream": "low_level"}, "type key"),
    ],
)
def test_a_turn_that_cannot_be_is_refused(turn: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        MessageTurn.from_dict(turn)


PART = {"weight": 1, "messages": turns("t", "x")}


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({}, "one of"),
        ({"messages": turns("t", "x"), "blend": {"a": PART}}, "only one of"),
        ({"messages": turns("${mood}", "x")}, "unknown binding"),
        ({"messages": [MessageTurn("user", "x", "high_level")]}, "supervised"),
        ({"blend": {}}, "at least one"),
        ({"blend": {"a": {"messages": turns("t", "x")}}}, "weight"),
        ({"blend": {"a": {**PART, "weight": 0}}}, "positive"),
        ({"blend": {"a": {"weight": 1, "blend": {"b": PART}}}}, "cannot itself"),
        ({"blend": {"a": PART}, "route": "vqa"}, "route"),
        ({"messages": turns("t", "x"), "route": "audio"}, "route"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(recipe: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        TrainingRecipe.from_dict(recipe)


@pytest.mark.parametrize(
    "expression", ["plan", "active_at(plan)", "look_at(t, style=plan)", "nth_next(t, style=plan, offset=0)"]
)
def test_an_expression_that_cannot_be_read_is_refused(expression: str) -> None:
    with pytest.raises(SchemaError):
        render(TrainingRecipe(turns("t", "${mine}"), {"mine": expression}))


def test_annotations_that_are_no_dicts_are_refused() -> None:
    with pytest.raises(TypeError, match="must be dictionaries"):
        render(turns("t", "x"), events=["hello"])


def test_a_file_is_read(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "bindings: {next: 'nth_next(t, style=subtask)'}\nmessages:\n"
        "  - {role: user, content: '${task}', stream: high_level}\n"
        "  - {role: assistant, content: '${next}', stream: high_level, target: true}\n"
    )
    recipe = load_recipe(path)
    assert recipe.referenced_binding_names() == {"task", "next"}
    assert contents(render(recipe)) == ["pick", "lift"]
    path.write_text("- x")
    with pytest.raises(SchemaError, match="mapping"):
        load_recipe(path)


def test_the_defaults_can_all_be_resolved() -> None:
    for name in DEFAULT_BINDINGS:
        assert contents(render(turns("t", f"${{{name}}}")))[1] in ("", "grasp")
