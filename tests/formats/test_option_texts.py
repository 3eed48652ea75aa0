"""Options that are given as text, in addresses and on the command line."""

import pytest

from stepwell.errors import FormatError
from stepwell.formats.option_texts import flag_of, names_of, renames_of


def test_truths_are_words() -> None:
    assert [flag_of("x", value) for value in (True, "true", "1", "Yes")] == [True] * 4
    assert [flag_of("x", value) for value in (False, "False", "0", "no", "")] == [False] * 5
    with pytest.raises(FormatError, match=r"x='maybe'\. Allowed: true, false"):
        flag_of("x", "maybe")


def test_names_are_a_text_or_several() -> None:
    assert names_of(" a, b.c,,") == names_of(["a", "b.c", ""]) == ["a", "b.c"]
    assert names_of(()) == []


def test_new_names_are_mappings_or_pairs() -> None:
    assert renames_of("a:b, c.d=e,") == {"a": "b", "c.d": "e"}
    assert renames_of({"a": "b"}) == {"a": "b"}
    assert renames_of(None) == {}


def test_a_name_has_one_new_name() -> None:
    with pytest.raises(FormatError, match="a name comes twice"):
        renames_of("a=b, a:c")


@pytest.mark.parametrize("text", ["a", "a=", "a:b,c"])
def test_a_name_without_a_new_one_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="has no new name"):
        renames_of(text)
