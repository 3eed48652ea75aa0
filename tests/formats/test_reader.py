"""Which features of a data set a store gets."""

import pytest

from stepwell.errors import FormatError
from stepwell.formats.reader import check_told_apart, left_out, store_schema, with_told_finals
from stepwell.schema import Array


def test_what_is_left_out_must_be_there() -> None:
    assert left_out(" a,b", ["a", "b", "c"], "x") == left_out(["b", "a"], ["a", "b", "c"], "x") == {"a", "b"}
    assert left_out((), [], "x") == set()
    with pytest.raises(FormatError, match=r"ignore=\['d'\]: x has a, b\."):
        left_out("a,d", ["a", "b"], "x")


def test_names_that_dots_make_alike_are_refused() -> None:
    check_told_apart(["a.b", "a", "b"], "x")
    with pytest.raises(FormatError, match=r"x: two features are called 'a\.b'"):
        check_told_apart(["a.b", "c", "a.b"], "x")


def test_a_final_row_needs_a_feature_that_tells_the_steps() -> None:
    both = {"obs": Array(2, final=True), "action": Array(3)}
    assert with_told_finals(both) == both
    assert with_told_finals({"obs": both["obs"]}) == {"obs": Array(2)}


@pytest.mark.parametrize("names", [["a", "left arm"], ["Arm", "arm"], ["a", "größe"], ["episodes"], ["x:y", "z"]])
def test_a_name_that_a_store_cannot_have_is_told_and_how_to_leave_it_out(names: list[str]) -> None:
    features = {name: Array(2) for name in names}
    wrong = next(name for name in reversed(names) if name != "z")
    with pytest.raises(FormatError, match=rf"^here: .*'{wrong}'.* Leave it out with ignore=\['{wrong}'\]"):
        store_schema(features, "here")
    del features[wrong]
    features["action"] = Array(2)
    assert list(store_schema(features, "here")) == list(features)
