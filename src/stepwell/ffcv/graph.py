"""The pipelines of a loader as one graph, and how a batch walks through it.

::

    field ── decoder ── flip ── normalise ── ToTensor ── ToTorchImage ──> output
             '------ lowered: one stepwell.Field ----'   '-- called with the batch, in order --'
                     threads of stepwell's loader             one thread

What stepwell's loader can do itself at the beginning of a pipeline, it does: the decoder and the `Lowered` transforms
behind it, up to where two pipelines part. The rest is called operation by operation, by FFCV's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError
from stepwell.ffcv.decoders import FieldDecoder
from stepwell.ffcv.fields import Field as FfcvField
from stepwell.ffcv.pipeline import Allocation, AllocationQuery, Code, Operation, PipelineSpec, State, torch_of
from stepwell.ffcv.transforms import (
    Lowered,
    ModuleWrapper,
    NormalizeImage,
    Squeeze,
    ToTensor,
    ToTorchImage,
    View,
    run_lowered,
)
from stepwell.kernels.draws import Draws
from stepwell.order.order import derive_key
from stepwell.windows import Field

__all__ = ["Graph", "Source"]


@dataclass
class Source:
    """What decoders get of a file.

    Args:
        handlers: the field of each name.
        rows: name to the field's part of the samples' rows; None for a store's.
        memory_read: (ptr, state) to bytes; None for a store.
        state: gives what it takes.
        lowers: whether stepwell's loader can read the fields.
    """

    handlers: Mapping[str, FfcvField]
    rows: Any
    memory_read: Any
    state: Callable[[], Any]
    lowers: bool


@dataclass(eq=False)
class Node:
    """An operation in its place."""

    operation: Operation
    name: str
    number: int
    parent: Node | None = None
    uses: int = 0
    is_lowered: bool = False
    # of the value that the loader gives
    key: str | None = None
    finished: Callable[[Any], Any] = field(default=lambda values: values)
    code: Code | None = None
    init_shared: Code | None = None
    query: Allocation = None
    shared_query: Allocation = None
    children: list[Node] = field(default_factory=list)


class Graph:
    """The operations of all outputs.

    Args:
        specs: of each output, by its name.
        source: of the fields.

    Raises:
        SchemaError: a source that is not there, or no decoder.
    """

    def __init__(self, specs: Mapping[str, PipelineSpec], source: Source) -> None:
        self._source = source
        self._nodes: list[Node] = []
        self._roots: list[Node] = []
        self._leaves: dict[str, Node] = {}
        # outputs that go on from an operation: its name, the operation, and the nodes of its own
        self._branches: list[tuple[str, Operation, list[Node]]] = []
        for name, spec in specs.items():
            self._add_pipeline(name, spec)
        self._link()
        # as they were given
        self._leaves = {name: self._leaves[name] for name in specs}
        self._lowered: list[list[Node]] = []
        if source.lowers:
            self._lower()
        self._order = list(self._walk())
        self.code: list[Code] = []
        self._states: dict[Node, State] = {}
        self.generate_code()

    @property
    def fields(self) -> dict[str, Field]:
        """What stepwell's loader reads, as the operations are now."""
        found = {}
        for root, *others in self._lowered:
            decoder: Any = root.operation
            transforms = tuple(node.operation.lowered() for node in others)  # type: ignore[attr-defined]
            key = str([root, *others][-1].key)
            found[key] = Field(root.name, decoder=decoder.field_decoder, transform=transforms)
        return found

    def declare(self) -> None:
        """Ask the operations for states and memory; before each epoch, since scripts change sizes in between."""
        torch = torch_of()
        first = State(True, torch.device("cpu"), None, np.dtype(np.uint8))
        for node in self._order:
            operation = node.operation
            operation.accept_field(self._source.handlers[node.name])
            operation.accept_globals(self._source.rows(node.name), self._source.memory_read)
            before = first if node.parent is None else self._states[node.parent]
            self._states[node], node.query = operation.declare_state_and_memory(before)
            node.shared_query = operation.declare_shared_memory(before)

    def generate_code(self) -> None:
        """Declare and generate all that is called with batches, anew."""
        self.declare()
        self.code = []
        for node in self._order:
            if node.is_lowered:
                continue
            called = type(node.operation).__qualname__
            jit_mode = self._states[node].jit_mode or node.parent is None
            node.code = Code(node.operation.generate_code(), called, jit_mode)
            init = node.operation.generate_code_for_shared_state()
            node.init_shared = None if init is None else Code(init, called, True)
            self.code.append(node.code)

    @property
    def is_light(self) -> bool:
        """Whether all that is not lowered are views of tensors."""
        return all(node.is_lowered or _is_view(node.operation) for node in self._order)

    def run(
        self, values: Mapping[str, Any], ids: npt.NDArray[Any], seed: int, epoch: int, start: int
    ) -> tuple[Any, ...]:
        """Return the outputs of a batch.

        Args:
            values: what the loader read, by `fields`.
            ids: numbers of the samples, [B].
            seed: of random numbers.
            epoch: of them.
            start: position of the first sample in the epoch.
        """
        results: dict[Node, Any] = {}
        shared: dict[Operation, Any] = {}
        for node in self._order:
            if node.key is not None:
                results[node] = node.finished(values[node.key])
            if node.is_lowered:
                continue
            given = ids if node.parent is None else self._taken(results, node.parent)
            if isinstance(node.operation, Lowered) and node.parent is not None and _is_ours(node.operation):
                key = derive_key(seed, epoch, f"ffcv operation {node.number}")
                draws = Draws.of(key, np.arange(start, start + len(ids)))
                results[node] = run_lowered(node.operation, given, draws)
                continue
            results[node] = self._call(node, given, ids, shared)
        return tuple(results[leaf] for leaf in self._leaves.values())

    def _call(self, node: Node, given: Any, ids: npt.NDArray[Any], shared: dict[Operation, Any]) -> Any:
        code = node.code
        assert code is not None
        arguments = [given, _allocated(node.query, len(ids))]
        if code.with_indices:
            arguments.append(ids)
        if node.parent is None:
            arguments += [self._source.rows(node.name), self._source.state()]
        if node.init_shared is not None:
            if node.operation not in shared:
                shared[node.operation] = _allocated(node.shared_query, len(ids))
                node.init_shared(shared[node.operation])
            arguments.append(shared[node.operation])
        return code(*arguments)

    @staticmethod
    def _taken(results: dict[Node, Any], parent: Node) -> Any:
        """Return a value to go on with: a copy where others go on with it as well, since many change it in place."""
        value = results[parent]
        if parent.uses < 2:
            return value
        return value.copy() if isinstance(value, np.ndarray) else value.clone()

    def _split(self, name: str, spec: PipelineSpec) -> tuple[Operation, list[Any]]:
        """Return the decoder of a pipeline, and the operations behind it."""
        handler = self._source.handlers.get(str(spec.source))
        if handler is None:
            known = ", ".join(self._source.handlers)
            raise SchemaError(f"pipeline {name!r}: there is no field {spec.source!r}. The file has: {known}.")
        kind = handler.get_decoder_class()
        rest = list(spec.transforms)
        if spec.decoder is not None:
            return spec.decoder, rest
        if rest and isinstance(rest[0], kind):
            return rest[0], rest[1:]
        try:
            return kind(), rest
        except Exception as error:
            raise SchemaError(
                f"pipeline {name!r}: its default decoder, {kind.__qualname__}, needs arguments: begin with one."
            ) from error

    def _add(self, operation: Operation, name: str, parent: Node | None = None) -> Node:
        node = Node(operation, name, len(self._nodes), parent)
        self._nodes.append(node)
        return node

    def _add_pipeline(self, name: str, spec: PipelineSpec) -> None:
        """Add the nodes of an output."""
        rest, own = list(spec.transforms), []
        if isinstance(spec.source, str):
            decoder, rest = self._split(name, spec)
            own.append(self._add(decoder, spec.source))
            self._roots += own
        elif spec.decoder is not None:
            raise SchemaError(f"pipeline {name!r}: a source that is an operation has no decoder.")
        if spec.default_pipeline:
            rest.append(ToTensor())
        for each in rest:
            own.append(self._add(_as_operation(each), own[-1].name if own else "", own[-1] if own else None))
        if not isinstance(spec.source, str):
            self._branches.append((name, spec.source, own))
        if own:
            self._leaves[name] = own[-1]

    def _link(self) -> None:
        """Find the nodes that outputs go on from, and who goes on from each."""
        for name, operation, own in self._branches:
            found = [node for node in self._nodes if node.operation is operation]
            if len(found) != 1:
                what = "in no pipeline" if not found else f"in {len(found)} places"
                raise SchemaError(f"pipeline {name!r} goes on from {operation}, which is {what}. Allowed: one.")
            if own:
                own[0].parent = found[0]
            else:
                self._leaves[name] = found[0]
        for node in self._nodes:
            if node.parent is not None:
                node.parent.children.append(node)
        for node in self._nodes:
            node.uses = len(node.children) + sum(leaf is node for leaf in self._leaves.values())

    def _walk(self) -> Iterator[Node]:
        """Yield the nodes, each behind the one that it goes on from."""
        waiting = list(reversed(self._roots))
        while waiting:
            node = waiting.pop()
            for child in node.children:
                child.name = node.name
            yield node
            waiting += reversed(node.children)

    def _lower(self) -> None:
        """Mark the nodes that stepwell's loader stands for."""
        for root in self._roots:
            decoder = root.operation
            if not isinstance(decoder, FieldDecoder) or not _is_ours(decoder):
                continue
            chain = [root]
            while chain[-1].uses == 1 and chain[-1].children and _lowers(chain[-1].children[0].operation):
                chain.append(chain[-1].children[0])
            for node in chain:
                node.is_lowered = True
            chain[-1].key, chain[-1].finished = f"{root.name}/{root.number}", decoder.finished
            self._lowered.append(chain)


def _is_ours(operation: Operation) -> bool:
    """Whether an operation is one of this package: a subclass may do something else."""
    return type(operation).__module__.startswith("stepwell.ffcv.")


def _lowers(operation: Operation) -> bool:
    return isinstance(operation, Lowered | NormalizeImage) and _is_ours(operation)


def _is_view(operation: Operation) -> bool:
    is_view = type(operation) in (ToTensor, Squeeze, View)
    return is_view or (type(operation) is ToTorchImage and operation.channels_last)


def _as_operation(given: Any) -> Operation:
    """Return an operation of a pipeline; of a torch module one that calls it."""
    if isinstance(given, Operation):
        return given
    torch = torch_of(needed=False)
    if torch is not None and isinstance(given, torch.nn.Module):
        return ModuleWrapper(given)
    raise SchemaError(f"a {type(given).__qualname__} in a pipeline. Allowed: operations and torch modules.")


def _allocated(query: Allocation, size: int) -> Any:
    """Return the memory that an operation asks for."""
    if query is None:
        return None
    if isinstance(query, AllocationQuery):
        return query.allocate(size)
    return tuple(each.allocate(size) for each in query)
