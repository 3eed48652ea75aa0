"""Two directories change places, at once or by renames; after a failure both are where they were."""

import errno
from pathlib import Path

import pytest

from stepwell.files import exchanging


@pytest.fixture
def pair(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    return str(tmp_path / "one"), str(tmp_path / "other")


def names(pair):
    return [Path(path, "name").read_text() for path in pair]


@pytest.mark.parametrize("number", [None, errno.EINVAL])
def test_directories_change_places(number, pair, tmp_path, monkeypatch):
    if number is not None:
        monkeypatch.setattr(exchanging, "_swap", lambda *_: number)
    exchanging.exchange(*pair)
    assert names(pair) == ["other", "one"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("number", [None, errno.EINVAL])
def test_a_directory_that_is_missing_is_an_error_and_the_other_stays(number, pair, monkeypatch):
    if number is not None:
        monkeypatch.setattr(exchanging, "_swap", lambda *_: number)
    with pytest.raises(FileNotFoundError):
        exchanging.exchange(f"{pair[0]}-missing", pair[1])
    assert names(pair) == ["one", "other"]
