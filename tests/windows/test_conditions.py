"""Conditions on episodes as text: what they mean, beside a model in Python, and what is refused."""

import json
import operator
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell import WindowError
from stepwell.store.snapshot import MetadataLines
from stepwell.windows.conditions import Condition, sort_key, value_of

FACTS = {"length": 12, "task": "Push the T", "success": False, "seed": 3, "tags": ["a", 2], "robot": {"arm": "left"}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("length > 10", True),
        ("length>=12,length<=12", True),
        ("length > 10 and success", False),
        ("not success", True),
        ("not (length > 10 or success)", False),
        ("success or length > 10 and seed = 4", False),
        ("(success or length > 10) and seed == 3", True),
        ("task = Push the T", True),
        ('task = "Push the T" and seed=3', True),
        ("task='push the t'", False),
        ("task ~ push", True),
        ("task ~ lift", False),
        ("seed in (1, 2, 3)", True),
        ("seed in (1, 2)", False),
        ("task in (lift, Push the T)", True),
        ("seed != 4", True),
        ('seed = "3"', False),
        ("tags = a", True),
        ("tags = 2", True),
        ("tags ~ A", True),
        ("robot.arm = left", True),
        ("robot.leg = left", False),
        ("robot.leg != left", True),
        ("success = false", True),
        ("success = False", True),
        ("missing", False),
        ("missing = 1", False),
        ("missing < 1 or missing >= 1", False),
        ("task > 3", True),
        ("seed > two", False),
        ("seed < 3.5", True),
        ('"seed" = 3', True),
        ("AND = 1 or seed = 3", None),
        ("success = null", False),
    ],
)
def test_a_condition_means_what_it_says(text: str, holds: bool | None) -> None:
    if holds is None:
        with pytest.raises(WindowError, match="a name is missing"):
            Condition(text.lower())
        return
    assert Condition(text)(FACTS) is holds
    assert pickle.loads(pickle.dumps(Condition(text)))(FACTS) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "length >",
        "> 3",
        "length > 3 and",
        "(length > 3",
        "length > 3)",
        "seed in 3",
        "seed in (1",
        "a b",
        "a = 'b",
        "not",
        "a = = b",
        "a & b = 3",
        "(" * 60 + "a" + ")" * 60,
        "a" * 20_000,
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(WindowError) as refused:
        Condition(text)
    assert "condition" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("not length > 1O", "'1O'"),
        ("length != five and success", "'five and success'"),
        ("length > 5 success", "'5 success'"),
        ('length = "12"', "'\"12\"'"),
        ("episode_index in (1, two)", "'two)'"),
        ("terminated != flase", "'flase'"),
        ("is_open = null", "'null'"),
    ],
)
def test_a_fact_is_not_compared_with_what_it_never_is(text: str, place: str) -> None:
    # each would hold of every episode, or of none
    with pytest.raises(WindowError, match=r"is (a number|true or false), and '.*' is not") as refused:
        Condition(text)
    assert f"at {place}" in str(refused.value)
    facts = {"length": 12, "terminated": True}
    assert Condition("length in (11, 12.0) and length ~ 1 and terminated = 1 and terminated != FALSE")(facts)


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    try:
        Condition(text)(FACTS)
    except WindowError as error:
        assert str(error)


OPS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
names = st.sampled_from("abc")
values = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False, width=32))
trees = st.recursive(
    st.tuples(names, st.sampled_from(sorted(OPS)), values),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(list)
    ),
    max_leaves=8,
)


def written(tree: Any) -> str:
    if isinstance(tree, list):
        return f"({written(tree[0])}) {tree[1]} ({written(tree[2])})"
    return f"not ({written(tree[1])})" if tree[0] == "not" else f"{tree[0]} {tree[1]} {tree[2]!r}"


def meant(tree: Any, facts: dict[str, Any]) -> bool:
    if isinstance(tree, list):
        sides = meant(tree[0], facts), meant(tree[2], facts)
        return all(sides) if tree[1] == "and" else any(sides)
    if tree[0] == "not":
        return not meant(tree[1], facts)
    return bool(OPS[tree[1]](facts[tree[0]], tree[2]))


@given(trees, st.fixed_dictionaries(dict.fromkeys("abc", values)))
def test_conditions_of_numbers_mean_what_python_means(tree: Any, facts: dict[str, Any]) -> None:
    assert Condition(written(tree))(facts) == meant(tree, facts)


@given(st.text(min_size=1, max_size=20))
def test_a_quoted_text_equals_itself_and_no_other(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    condition = Condition(f"task = '{escaped}'")
    assert condition({"task": text})
    assert not condition({"task": text + "x"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(json_values, max_size=8), st.text(max_size=4), st.sampled_from([*OPS, "~"]))
def test_values_of_any_kind_are_compared_and_sorted(found: list[Any], text: str, op: str) -> None:
    condition = Condition(f"a {op} {json.dumps(text)}")
    assert all(condition({"a": value}) in (True, False) for value in found)
    keys = [sort_key(value) for value in sorted(found, key=sort_key)]
    assert keys == sorted(keys)


@pytest.fixture
def runs(tmp_path: Path) -> stepwell.Store:
    store = stepwell.create(tmp_path / "runs.well", {"x": stepwell.Array((), "int64")})
    with store.writer() as writer:
        for number in range(6):
            more = {"note": {"by": "me"}} if number == 4 else {}
            writer.add_episode({"x": np.arange(number + 2)}, terminated=number % 2 == 0, seed=number % 3, **more)
    return store


def test_a_view_takes_a_condition_and_refreshes_by_it(runs: stepwell.Store) -> None:
    view = stepwell.View(runs).select(where="terminated and seed in (0, 1)")
    assert view.episode_index.tolist() == [0, 4]
    assert pickle.loads(pickle.dumps(view)).episode_index.tolist() == [0, 4]
    with runs.writer() as writer:
        writer.add_episode({"x": np.arange(3)}, terminated=True, seed=1)
    assert view.refresh().episode_index.tolist() == [0, 4, 6]
    assert stepwell.View(runs).select(where="note.by = me").episode_index.tolist() == [4]


def test_a_name_that_no_episode_has_is_refused_with_the_nearest(runs: stepwell.Store) -> None:
    with pytest.raises(WindowError, match=r"no episode has 'terminatd'. Did you mean 'terminated'\? There are: "):
        stepwell.View(runs).select(where="terminatd")
    assert stepwell.View(runs).select([], where="terminatd").num_episodes == 0


def test_metadata_is_read_for_conditions_that_need_it(runs: stepwell.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = MetadataLines.read
    monkeypatch.setattr(MetadataLines, "read", lambda self, *where: read.append(where[-1]) or real(self, *where))
    store = stepwell.open(runs.path, mode="r")
    assert stepwell.View(store).select(where="length > 4 and not is_open").num_episodes == 3
    assert read == []
    assert stepwell.View(store).select(where="length > 4 and seed = 0").num_episodes == 1
    assert len(read) == 6


def test_a_dotted_name_is_looked_up_whole_first() -> None:
    assert value_of({"a.b": 1, "a": {"b": 2, "c": {"d": 3}}}, "a.b") == 1
    assert value_of({"a": {"b": 2, "c": {"d": 3}}}, "a.c.d") == 3
    assert value_of({"a": 4}, "a.b", "none") == "none"
