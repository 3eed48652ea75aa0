"""What must be true of files of others that rows of a store were left in: they are as they were, by size and time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from stepwell.codecs import codec_class
from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.files.addresses import plain_address
from stepwell.references.file_codec import ListedFileCodec, files_of
from stepwell.references.file_states import problem_of
from stepwell.references.trusted_paths import check_reach, is_reached
from stepwell.schema import Feature, Schema
from stepwell.store.segment_checks import Check

__all__ = ["file_checks"]


def file_checks(schema: Schema | None) -> Iterator[Check]:
    """Yield a check of each file that features list, up to the first that references may not lead to; none is read.

    Args:
        schema: of the store; None: not known.
    """
    seen: set[tuple[str, str]] = set()
    for feature in (schema or {}).values():
        for path, line in _listed(feature):
            # features of one data set list the same ones
            if (path, line) not in seen:
                seen.add((path, line))
                check = functools.partial(_check_state, path, line, feature.reach)
                yield Check(Path(path), check, where=plain_address(path))
            if not is_reached(path, feature.reach):
                # what is to be said of the others is the same
                break


def _listed(feature: Feature) -> Iterator[tuple[str, str]]:
    """Yield the files that a feature lists, with what is noted of each; none of one that is not understood."""
    try:
        if feature.is_raw or not issubclass(codec_class(feature), ListedFileCodec):
            return
        files = files_of(feature)
    except StepwellError:
        # a codec that this process does not have; decoding says what is wrong with options
        return
    yield from files.noted()


def _check_state(path: str, line: str, reach: tuple[str, ...] | None) -> None:
    check_reach(path, reach)
    problem = problem_of(path, line)
    if problem is not None:
        raise CorruptSegmentError(problem)
