"""Errors by Reverb's names; arguments that cannot be are ValueError and TypeError, as there."""

from stepwell.errors import StepwellError

__all__ = ["DeadlineExceededError", "ReverbError"]


class ReverbError(StepwellError):
    """An error of a server, or of the way to it."""


class DeadlineExceededError(ReverbError, TimeoutError):
    """What was asked for was not done in the time given; what it waits for goes on."""
