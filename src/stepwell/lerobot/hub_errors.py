"""What the Hugging Face hub refuses, and what goes wrong on the way, in the words of stepwell."""

from __future__ import annotations

import errno

from stepwell.errors import DatasetNotFoundError, DiskFullError, FormatError, StepwellError
from stepwell.lerobot.meta_files import said

__all__ = ["explained", "is_refusal", "raised_by_hub"]


def raised_by_hub() -> tuple[type[Exception], ...]:
    """Return what functions of ``huggingface_hub`` raise for what is no mistake in a program."""
    from huggingface_hub.utils import EntryNotFoundError, HfHubHTTPError, HFValidationError

    # its base is the root of the errors of the HTTP library, which is another one in every major version
    return (OSError, EntryNotFoundError, HFValidationError, *HfHubHTTPError.__bases__)


def is_refusal(error: Exception) -> bool:
    """Whether the hub answered, and what it said will not change by trying again."""
    from huggingface_hub.utils import HFValidationError, LocalTokenNotFoundError

    return isinstance(error, HFValidationError | LocalTokenNotFoundError) or status_of(error) in (400, 401, 403, 404)


def status_of(error: Exception) -> int | None:
    """Return the status that the hub answered, None when it did not."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def explained(error: Exception, what: str, endpoint: str) -> StepwellError:
    """Return the error of stepwell for what ``huggingface_hub`` raised.

    Args:
        error: that was raised.
        what: was asked for: a repository, or a file of one.
        endpoint: address of the hub.
    """
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DiskFullError(f"no space left to fetch {what}: {error}. Choose fewer episodes, or another cache_dir.")
    cause = _refusal(error, endpoint)
    if cause is None:
        return DatasetNotFoundError(f"{what} cannot be fetched from {endpoint}: {said(error)}. Try again later.")
    kind, words = cause
    return kind(f"{what} {words}")


def _refusal(error: Exception, endpoint: str) -> tuple[type[StepwellError], str] | None:
    """Return the class and the rest of a sentence for what the hub refused; None for anything else."""
    from huggingface_hub import utils

    login = "give token=, set HF_TOKEN, or log in with huggingface_hub's command"
    # the first that fits: some of these are others, too
    words: list[tuple[type[Exception], str | None]] = [
        (utils.LocalEntryNotFoundError, None),
        (utils.GatedRepoError, f"is gated. Ask for access on its page at {endpoint}, and {login}."),
        (utils.RevisionNotFoundError, f"does not exist at {endpoint}: no such tag, branch or commit. Leave it out."),
        (
            utils.RepositoryNotFoundError,
            f"is not at {endpoint}, or is private. Check the name, or {login}. For a directory write ./ in front.",
        ),
        (utils.HFValidationError, f"cannot be a repository: {error}"),
        (utils.LocalTokenNotFoundError, f"needs a token, and none is stored: {login}."),
        (utils.EntryNotFoundError, f"is not there at {endpoint}, though metadata names it. Choose other episodes."),
    ]
    for raised, sentence in words:
        if isinstance(error, raised):
            kind = FormatError if raised is utils.EntryNotFoundError else DatasetNotFoundError
            return None if sentence is None else (kind, sentence)
    if status_of(error) in (401, 403):
        return DatasetNotFoundError, f"may not be read (status {status_of(error)} from {endpoint}): {login}."
    return None
