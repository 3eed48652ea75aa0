"""How `make site` reads our sources, for griffe: names that modules load on first use, and examples as examples."""

import ast
import re
from typing import Any

import griffe


class Sources(griffe.Extension):
    """Give a module the names of its ``_HOMES``, a dict of name to module; griffe calls examples ``Examples:``."""

    def on_module_members(self, *, node: Any, mod: griffe.Module, **kwargs: Any) -> None:
        """Add an alias for each name that is not there."""
        for name, home in homes_of(node):
            if name.isidentifier() and name not in mod.members:
                mod.set_member(name, griffe.Alias(name, f"{home}.{name}", parent=mod))

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename the heading of examples."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


def homes_of(node: Any) -> list[tuple[str, str]]:
    """Return name and module of each entry; none of a module without ``_HOMES``."""
    for statement in getattr(node, "body", ()):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if getattr(targets[0], "id", "") == "_HOMES" and isinstance(statement.value, ast.Dict):
            pairs = zip(statement.value.keys, statement.value.values, strict=True)
            constant = [(k, v) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)]
            return [(str(key.value), str(home.value)) for key, home in constant]
    return []
