"""Pickled trajectories, as Decision Transformer has them: a list of dicts of arrays, an episode each.

::

    hopper-medium-v2.pkl    [{"observations": [T, ...], "next_observations", "actions", "rewards", "terminals"}, ...]

A pickle is a program. It is read only where its user says ``trust=True``, and then by an unpickler that makes arrays of
NumPy and containers, and nothing else.

Source: the code of decision-transformer (``gym/data/download_d4rl_datasets.py``).
"""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, UntrustedFileError
from stepwell.files.local_files import read_regular
from stepwell.formats.options import flag_of
from stepwell.formats.reader import Reader, left_out, store_schema
from stepwell.formats.registry import register_reader
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Array, Feature, Image

__all__ = ["TrajectoriesReader", "unpickled_arrays"]

SUFFIXES = (".pkl", ".pickle")
# what protocols from 2 on begin with
PROTOCOL = b"\x80"
OBSERVATIONS, NEXT, ACTIONS = "observations", "next_observations", "actions"
ENDS, CUTS = ("terminals", "dones"), ("timeouts", "truncations")
MODES = ("auto", "keep", "ignore")
# what dtypes of numbers and texts are called
PLAIN = re.compile(r"[<>|=]?(?:[biufc][0-9]{1,2}|[SU][0-9]{1,6})")


@register_reader
class TrajectoriesReader(Reader):
    """Episodes of a pickled list of dicts of arrays.

    Args:
        source: a ``.pkl`` file.
        trust: must be True: a pickle is a program of whoever wrote it. Of `stepwell.open`, ``trust=True`` as well.
        next_obs: what becomes of ``next_observations``: "auto" (default): where they repeat the observations one step
            later, their last row is the final one, else they are kept; "keep"; "ignore".
        ignore: names to leave out.

    Raises:
        UntrustedFileError: without ``trust=True``, or a pickle that needs more than arrays and containers.
        FormatError: no list of dicts of arrays with a row a step.

    Notes:
        As for `Reader`. An episode terminated where its last ``terminals`` (or ``dones``) is set, else was truncated.
        All of the file is held in memory.
    """

    name: ClassVar[str] = "decision-transformer"

    def __init__(
        self, source: str, *, trust: bool | str = False, next_obs: str = "auto", ignore: Sequence[str] | str = ()
    ) -> None:
        super().__init__(source)
        if next_obs not in MODES:
            raise FormatError(f"next_obs={next_obs!r}. Allowed: {', '.join(MODES)}.")
        if not flag_of("trust", trust):
            raise UntrustedFileError(
                f"{source} is a pickle, and was not read: a pickle is a program. If you know where it comes from, "
                "say trust=True, or ?trust=true in the address: arrays and containers are read then, and nothing else."
            )
        self._held: list[dict[str, npt.NDArray[Any]]] | None = None
        first = self._trajectories()[0]
        self._count = len(self._trajectories())
        mode = next_obs
        if mode == "auto":
            mode = "final" if all(_repeats(each) for each in self._trajectories()) else "keep"
        self._has_final = mode == "final"
        ignored = left_out(ignore, first, source) | ({NEXT} if mode != "keep" else frozenset())
        self.schema = store_schema(
            {name: self._feature(name, rows) for name, rows in first.items() if name not in ignored}, source
        )

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a file that is called and begins as a pickle; see `Reader.accepts`."""
        if "://" in source or not source.lower().endswith(SUFFIXES):
            return False
        try:
            return read_regular(source, 1) == PROTOCOL
        except OSError:
            return False

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> EpisodeData:
        arrays = self._trajectories()[index]
        columns = {}
        for name, feature in self.schema.items():
            if name not in arrays or arrays[name].shape[1:] != feature.fixed_shape:
                shape = arrays[name].shape if name in arrays else "missing"
                raise FormatError(f"{self.label(index)}: {name} is {shape}, in the first trajectory it has {feature}.")
            rows = arrays[name].astype(feature.np_dtype, copy=False)
            columns[name] = np.concatenate([rows, arrays[NEXT][-1:]]) if feature.final else rows
        done, cut = (next((arrays[name] for name in names if name in arrays), None) for names in (ENDS, CUTS))
        is_done = done is not None and bool(done[-1])
        is_cut = bool(cut[-1]) if cut is not None else done is not None
        return EpisodeData(columns, terminated=is_done, truncated=is_cut and not is_done)

    def label(self, index: int) -> str:
        """Return the number of a trajectory; see `Reader.label`."""
        return f"trajectory {index} of {self.source}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def _trajectories(self) -> list[dict[str, npt.NDArray[Any]]]:
        if self._held is None:
            self._held = _checked(unpickled_arrays(self.source), self.source)
        return self._held

    def _feature(self, name: str, rows: npt.NDArray[Any]) -> Feature:
        shape = rows.shape[1:]
        is_image = rows.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and 0 not in shape
        feature = Image(shape) if is_image else Array(shape, rows.dtype)
        return feature.with_final() if self._has_final and name == OBSERVATIONS else feature


def unpickled_arrays(path: str) -> Any:
    """Return what a pickle holds, if that is arrays, numbers, texts and containers; see `TrajectoriesReader`."""
    try:
        return _Unpickler(io.BytesIO(read_regular(path))).load()
    except UntrustedFileError as error:
        raise UntrustedFileError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle raises what it likes
        raise FormatError(f"{path}: {type(error).__name__}: {error}. It is damaged, or no pickle of arrays.") from error


class _Unpickler(pickle.Unpickler):
    """Makes arrays and containers, of nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle may call."""
        found = KNOWN.get((module.replace("numpy.core", "numpy._core"), name))
        if found is None:
            raise UntrustedFileError(
                f"this pickle needs {module}.{name}, which is no array or container. It was not read."
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Refuse what lies elsewhere."""
        raise UntrustedFileError("this pickle refers to what lies elsewhere. It was not read.")


# Whatever a pickle calls is a function of this module, and what it fills an object of it: numpy's own would take an
# array of objects from bytes, and so any address for one.


class _Kind:
    """A dtype of numbers or texts."""

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str) or PLAIN.fullmatch(text) is None:
            raise UntrustedFileError(f"this pickle has values of type {str(text)[:40]!r}. It was not read.")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or state[1] not in ("<", ">", "|", "=") or state[2:5] != (None, None, None):
            raise UntrustedFileError("this pickle has values of a type with parts. It was not read.")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Filled(np.ndarray[Any, Any]):
    """An array that a pickle fills with bytes."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        if not isinstance(kind, _Kind) or not isinstance(data, bytes):
            raise UntrustedFileError("this pickle has an array of objects. It was not read.")
        super().__setstate__((1, shape, kind.dtype, bool(is_fortran), data))  # type: ignore[arg-type]


def _kind(text: Any, align: Any = False, copy: Any = False) -> _Kind:
    return _Kind(text)


def _ndarray(*arguments: Any) -> Any:
    raise UntrustedFileError("this pickle makes an array in an unusual way. It was not read.")


def _empty(kind: Any, shape: Any, dtype: Any) -> npt.NDArray[Any]:
    """Return the empty array that a pickle fills."""
    return np.ndarray.__new__(_Filled, (0,), "b") if kind is _ndarray and shape == (0,) else _ndarray()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    if not isinstance(kind, _Kind) or not isinstance(data, bytes | bytearray):
        raise UntrustedFileError("this pickle has an array of objects. It was not read.")
    return np.frombuffer(data, kind.dtype).reshape(shape, order=order)


def _scalar(kind: Any, data: Any = None) -> Any:
    if not isinstance(kind, _Kind) or not isinstance(data, bytes):
        raise UntrustedFileError("this pickle has a number that is none. It was not read.")
    return np.frombuffer(data, kind.dtype, 1)[0]


def _default_dict(kind: Any = None) -> Any:
    return defaultdict(list if kind is list else None)


KNOWN: Mapping[tuple[str, str], Any] = {
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _kind,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): _default_dict,
    ("builtins", "list"): list,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1") if encoding == "latin1" else None,
}


def _checked(found: Any, path: str) -> list[dict[str, npt.NDArray[Any]]]:
    """Return trajectories whose arrays have a row a step."""
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        raise FormatError(f"{path} holds a {type(found).__name__}. It should hold a list of dicts, a trajectory each.")
    made = []
    for number, each in enumerate(found):
        arrays = {str(name): np.asarray(rows) for name, rows in each.items()}
        counts = {rows.shape[:1] for rows in arrays.values()}
        wrong = [name for name, rows in arrays.items() if rows.dtype.kind not in "biuf"]
        if wrong or len(counts) != 1 or counts <= {(), (0,)}:
            shapes = ", ".join(f"{name} {rows.dtype} {rows.shape}" for name, rows in arrays.items())
            raise FormatError(
                f"trajectory {number} of {path}: {shapes or 'nothing'}. Arrays have a row of numbers a step."
            )
        made.append(arrays)
    return made


def _repeats(arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether next observations are those of the next step."""
    if OBSERVATIONS not in arrays or NEXT not in arrays or arrays[OBSERVATIONS].shape != arrays[NEXT].shape:
        return False
    rows, after = arrays[OBSERVATIONS][1:], arrays[NEXT][:-1]
    return rows.dtype == after.dtype and np.array_equal(rows, after, equal_nan=rows.dtype.kind == "f")
