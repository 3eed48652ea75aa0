"""Options of readers that may be given as text, as in addresses and on the command line: truths, names, new names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepwell.errors import FormatError

__all__ = ["flag_of", "names_of", "renames_of"]

WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


def flag_of(name: str, value: bool | str) -> bool:
    """Return a truth that may be given as text.

    Args:
        name: of the option.
        value: what was given.

    Raises:
        FormatError: another text than "true", "false", "1", "0", "yes" or "no".

    Example:
        >>> flag_of("verify", "no"), flag_of("verify", True)
        (False, True)
    """
    found = value if isinstance(value, bool) else WORDS.get(str(value).lower())
    if found is None:
        raise FormatError(f"{name}={value!r}. Allowed: true, false.")
    return found


def names_of(given: Iterable[str] | str) -> list[str]:
    """Return names that may be given as one text, joined by commas.

    Example:
        >>> names_of("action, reward"), names_of(["action"]), names_of("")
        (['action', 'reward'], ['action'], [])
    """
    parts = given.split(",") if isinstance(given, str) else given
    return [name for part in parts if (name := part.strip())]


def renames_of(rename: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return new names that are given as a mapping, or as text, with ``=`` or ``:``.

    Raises:
        FormatError: a part without a new name, or a name that comes twice.

    Example:
        >>> renames_of("jpg=image, cls=label"), renames_of("observation.state:proprio")
        ({'jpg': 'image', 'cls': 'label'}, {'observation.state': 'proprio'})
    """
    if not isinstance(rename, str):
        return dict(rename or {})
    # names of features have no colon, names of members may
    pairs = [part.partition("=" if "=" in part else ":") for part in names_of(rename)]
    wrong = next((old for old, _, new in pairs if not new.strip()), None)
    if wrong is not None:
        raise FormatError(f'rename={rename!r}: {wrong.strip()!r} has no new name. Allowed: "old=new,other=another".')
    found = {old.strip(): new.strip() for old, _, new in pairs}
    if len(found) < len(pairs):
        raise FormatError(f"rename={rename!r}: a name comes twice. Give each one new name.")
    return found
