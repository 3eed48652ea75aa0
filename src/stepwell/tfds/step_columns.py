"""Which features of a store are written, under which names, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.schema import Schema
from stepwell.tfds.naming import STEPS
from stepwell.tfds.step_forms import Form, form_of

__all__ = ["StepColumn", "own_name", "step_columns"]


@dataclass(frozen=True, slots=True)
class StepColumn:
    """A feature of steps.

    Args:
        source: its name in the store.
        path: its place in a step; "/" nests.
        form: how its rows are written.
    """

    source: str
    path: str
    form: Form


def step_columns(
    schema: Schema,
    *,
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    encodings: Any = None,
    images: Any = "png",
    labels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[StepColumn, ...]:
    """Return the features that are written, in the schema's order; see `stepwell.tfds.write_rlds` for all arguments.

    Raises:
        FeatureNotFoundError: a name that the store does not have.
        SchemaError: TFDS has no feature for one.

    Example:
        >>> from stepwell.schema import Array, Schema
        >>> schema = Schema({"observation.state": Array(7), "note": Array()})
        >>> columns = step_columns(schema, features=["observation.state"])
        >>> [(column.path, column.form.node) for column in columns]
        [('observation/state', Leaf(tensor float32 (7,)))]
    """
    chosen = list(schema) if features is None else _known(schema, "features", features)
    for argument, given in (("rename", rename), ("encodings", encodings), ("images", images), ("labels", labels)):
        if isinstance(given, Mapping):
            _known(schema, argument, given)
    return tuple(
        StepColumn(
            name,
            _path(name, (rename or {}).get(name, own_name(name))),
            form_of(
                name, schema[name], _choice(encodings, name), _choice(images, name, "png"), (labels or {}).get(name)
            ),
        )
        for name in schema
        if name in chosen
    )


def _known(schema: Schema, argument: str, given: Collection[str]) -> list[str]:
    if isinstance(given, str):
        raise SchemaError(f"{argument}={given!r}. Give a list of names.")
    for name in given:
        if name not in schema:
            raise FeatureNotFoundError(f"{argument}: no feature {name!r}. There are: {', '.join(schema)}.")
    return list(given)


def _choice(given: Any, name: str, default: Any = None) -> Any:
    """Return what an argument says of a feature: it holds for all, or is a mapping of names."""
    return given.get(name, default) if isinstance(given, Mapping) else given


def own_name(name: str) -> str:
    """Return the name that a feature had where it came from: an import calls ``is_first`` of steps ``steps.is_first``.

    Example:
        >>> own_name("steps.is_first"), own_name("action")
        ('is_first', 'action')
    """
    return name.removeprefix(f"{STEPS}.") if name != STEPS else name


def _path(name: str, target: str) -> str:
    """Return the place of a feature, of a name with dots."""
    parts = target.replace("/", ".").split(".") if isinstance(target, str) else []
    if not parts or not all(parts):
        raise SchemaError(f"feature {name!r} as {target!r}. Allowed: names between single dots, which nest.")
    return "/".join(parts)
