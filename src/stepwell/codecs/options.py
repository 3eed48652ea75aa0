"""The options of a codec, checked: every codec refuses a wrong one when it is made, with the same words."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.errors import SchemaError
from stepwell.schema import Feature

__all__ = ["check_option_names", "choice_option", "int_option"]


def check_option_names(feature: Feature, *allowed: str) -> None:
    """Refuse options that the feature's codec does not have.

    Raises:
        SchemaError: naming the unknown options and the allowed ones.
    """
    unknown = [name for name, _ in feature.options if name not in allowed]
    if unknown:
        has = f"It has: {', '.join(allowed)}." if allowed else "It has none."
        raise SchemaError(f"codec {feature.codec!r} has no option {', '.join(map(repr, unknown))}. {has}")


def int_option(feature: Feature, name: str, default: int, *, least: int, most: int) -> int:
    """Return an option that is an integer from `least` to `most`.

    Raises:
        SchemaError: naming the option, what was got and what is allowed.
    """
    value = feature.option(name, default)
    if type(value) is not int or not least <= value <= most:
        raise SchemaError(
            f"option {name!r} of codec {feature.codec!r} is {value!r}. Allowed: an integer from {least} to {most}."
        )
    return value


def choice_option(feature: Feature, name: str, default: str, choices: Sequence[str]) -> str:
    """Return an option that is one of `choices`.

    Raises:
        SchemaError: naming the option, what was got and what is allowed.
    """
    value = feature.option(name, default)
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise SchemaError(f"option {name!r} of codec {feature.codec!r} is {value!r}. Allowed: {allowed}.")
    return str(value)
