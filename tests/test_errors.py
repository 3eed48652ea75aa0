"""The exception tree: one root, the builtin that each resembles, messages for people."""

import builtins
import inspect
import json
import pickle
import re
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from stepwell import errors
from stepwell.errors import FeatureNotFoundError, MissingDependencyError, StepwellError, install_command

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


class Distribution:
    """What an installer has left beside a package: the text of its direct_url.json, or None."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.text


REPOSITORY = {"url": "https://host/stepwell", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, "pip install 'stepwell[image]'"),
        ({"url": "file:///my/check%20out", "dir_info": {"editable": True}}, "pip install -e '/my/check out[image]'"),
        ({"url": "file:///my/checkout", "dir_info": {}}, "pip install '/my/checkout[image]'"),
        ({"url": "file:///my/stepwell.whl", "archive_info": {}}, "pip install 'stepwell[image]'"),
        ({"url": "https://host/stepwell.whl", "archive_info": {}}, "pip install 'stepwell[image]'"),
        (REPOSITORY, "pip install 'stepwell[image] @ git+https://host/stepwell@ab12'"),
        ({"url": "ftp://host/x", "dir_info": {"editable": True}}, "pip install 'stepwell[image]'"),
        ("not json", "pip install 'stepwell[image]'"),
        ([1], "pip install 'stepwell[image]'"),
        ({"url": "file:///x", "dir_info": 3}, "pip install 'stepwell[image]'"),
        ({"url": "x", "vcs_info": {}}, "pip install 'stepwell[image]'"),
    ],
)
def test_missing_dependency_says_what_to_type_as_stepwell_was_installed(
    record: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = record if record is None or isinstance(record, str) else json.dumps(record)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution(text))
    assert str(MissingDependencyError.of("simplejpeg", "image")) == f"simplejpeg is not installed. Type: {command}"


def test_a_package_that_was_not_installed_names_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", fail)
    assert install_command("image,video") == "pip install 'stepwell[image,video]'"
