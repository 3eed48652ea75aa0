"""The exception tree: one root, the builtin that each resembles, messages for people."""

import builtins
import inspect
import pickle
import re

import pytest

from stepwell import errors
from stepwell.errors import FeatureNotFoundError, MissingDependencyError, StepwellError

WARNINGS = {"LeftOutWarning", "SharedFileSystemWarning"}
CLASSES = [getattr(errors, name) for name in errors.__all__ if name not in {*WARNINGS, "StepwellError"}]


@pytest.mark.parametrize("error", CLASSES)
def test_error_is_a_stepwell_error_and_the_builtin_that_the_tree_draws(error: type[StepwellError]) -> None:
    assert errors.__doc__
    drawn = re.search(rf"{error.__name__}\s+\((\w+)\)", errors.__doc__)
    assert drawn, "not drawn"
    assert error.__bases__ == (StepwellError, getattr(builtins, drawn[1]))


def test_tree_exports_and_draws_every_error_and_no_other() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert set(errors.__all__) == defined
    assert set(re.findall(r"── (\w+)", errors.__doc__ or "")) | {*WARNINGS, "StepwellError"} == defined


@pytest.mark.parametrize("error", [StepwellError, *CLASSES])
def test_error_prints_its_message_as_it_is_and_survives_pickling(error: type[StepwellError]) -> None:
    raised = error('no feature "x"')
    assert str(raised) == 'no feature "x"'
    assert str(pickle.loads(pickle.dumps(raised))) == 'no feature "x"'
    assert str(error()) == ""


def test_missing_feature_is_caught_as_a_key_error() -> None:
    with pytest.raises(KeyError):
        raise FeatureNotFoundError("x")


def test_missing_dependency_says_the_pip_line() -> None:
    assert str(MissingDependencyError.of("simplejpeg", "image")) == (
        'simplejpeg is not installed. Type: pip install "stepwell[image]"; '
        'in a clone of the repository: pip install -e ".[image]"'
    )
