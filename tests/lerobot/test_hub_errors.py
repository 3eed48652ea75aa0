"""What huggingface_hub raises is told apart, and told on."""

import errno

import pytest

from stepwell.errors import DatasetNotFoundError, DiskFullError, StepwellError
from stepwell.lerobot.hub_errors import explained, is_refusal, raised_by_hub, status_of

utils = pytest.importorskip("huggingface_hub.utils")


class Answer:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


class Answered(OSError):
    def __init__(self, status: int) -> None:
        super().__init__("the first line\nand others")
        self.response = Answer(status)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (OSError(errno.ENOSPC, "No space left"), DiskFullError, "no space left to fetch it"),
        (ConnectionError(""), DatasetNotFoundError, "cannot be fetched from here: ConnectionError"),
        (Answered(500), DatasetNotFoundError, "cannot be fetched from here: the first line"),
        (Answered(403), DatasetNotFoundError, r"may not be read \(status 403 from here\)"),
        (utils.LocalTokenNotFoundError("none"), DatasetNotFoundError, "needs a token"),
        (utils.LocalEntryNotFoundError("not here"), DatasetNotFoundError, "cannot be fetched from here: not here"),
    ],
)
def test_error_says_what_to_do(error: Exception, kind: type[StepwellError], says: str) -> None:
    assert isinstance(error, raised_by_hub())
    found = explained(error, "it", "here")
    assert type(found) is kind
    with pytest.raises(kind, match=says):
        raise found


@pytest.mark.parametrize(("status", "refused"), [(401, True), (403, True), (404, True), (429, False), (500, False)])
def test_only_an_answer_that_stays_is_a_refusal(status: int, refused: bool) -> None:
    assert status_of(Answered(status)) == status
    assert is_refusal(Answered(status)) is refused
    assert not is_refusal(ConnectionError())
