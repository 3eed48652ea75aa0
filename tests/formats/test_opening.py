"""``stepwell.open`` of paths and addresses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stepwell
from stepwell.errors import DatasetNotFoundError, FormatError, StepwellError, StoreNotFoundError
from stepwell.formats import cache, opening


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What was asked of the opener of lerobot:// addresses."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def fake(address: str, *, tolerance: float = 0, **options: Any) -> str:
        calls.append((address, options | ({"tolerance": tolerance} if tolerance else {})))
        return "a store"

    monkeypatch.setattr(cache, "import_module", lambda name: SimpleNamespace(open_in_place=fake, name=name))
    return calls


def test_a_path_opens_a_store_in_the_mode_asked_for(tmp_path: Path) -> None:
    stepwell.create(tmp_path / "a.well", {"action": stepwell.Array(2)})
    assert opening.open(tmp_path / "a.well").mode == "a"
    assert opening.open(str(tmp_path / "a.well"), mode="r").mode == "r"


def test_a_file_address_is_a_path(tmp_path: Path) -> None:
    stepwell.create(tmp_path / "a.well", {"action": stepwell.Array(2)})
    assert opening.open(f"file://{tmp_path}/a.well", mode="r").path == tmp_path / "a.well"
    with pytest.raises(StoreNotFoundError, match=f"no store at {tmp_path}/b"):
        opening.open(f"file://{tmp_path}/b")


def test_where_no_store_is_the_error_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepwell.create(tmp_path / "reach.well", {"action": stepwell.Array(2)})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreNotFoundError, match=r"there is nothing of this name\. Did you mean 'reach.well'"):
        opening.open("rech.well")
    with pytest.raises(StoreNotFoundError, match=r"there is nothing of this name\. Make one with stepwell.create"):
        opening.open("x")
    with pytest.raises(StoreNotFoundError, match=r"there is no store.json\. There are stores in it: reach.well\."):
        opening.open(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFoundError, match=r"there is no store.json\. Make one with stepwell.create"):
        opening.open("empty")


def test_an_unknown_scheme_is_told_without_the_secrets_of_the_address() -> None:
    with pytest.raises(StoreNotFoundError, match=r"no data set at http://host/a: there") as error:
        opening.open("http://me:SECRET@host/a?token=SECRET")
    assert "SECRET" not in str(error.value)


def test_an_address_goes_to_its_opener_with_the_options(opened: list[Any]) -> None:
    assert opening.open("lerobot://owner/name@main?episodes=0:2", tolerance=0.1) == "a store"  # type: ignore[comparison-overlap]
    opening.open("LeRobot:///data/pusht", mode="r")
    assert opened == [
        ("lerobot://owner/name@main?episodes=0:2", {"tolerance": 0.1}),
        ("LeRobot:///data/pusht", {}),
    ]


def test_a_reader_may_be_named_beside_its_address(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="an address of 'beton', not of 'zarr'"):
        opening.open(f"beton://{tmp_path}/a.beton", reader="zarr")
    with pytest.raises(DatasetNotFoundError, match="is not there"):
        opening.open(f"beton://{tmp_path}/a.beton", reader="beton")


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StoreNotFoundError, match=r"no s3://\. Allowed: the path of a store, .*lerobot://"):
        opening.open("s3://bucket/a.well")


def test_a_path_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match="option 'tolerance'"):
        opening.open(tmp_path, tolerance=1.0)


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_lerobot_directory_is_told_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    (tmp_path / "pusht" / "meta").mkdir(parents=True)
    (tmp_path / "pusht" / "meta" / "info.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    path = "pusht" if is_relative else str(tmp_path / "pusht")
    address = "lerobot://./pusht" if is_relative else f"lerobot://{tmp_path}/pusht"
    with pytest.raises(StoreNotFoundError, match="looks like a data set of lerobot") as caught:
        opening.open(path)
    assert f'give its address, "{address}";' in str(caught.value)


def test_any_other_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"there is no store\.json"):
        opening.open(tmp_path)


@pytest.mark.parametrize("path", [["a.well", "b.well"], ("a.tar",), b"a.well", None, 3])
def test_what_is_no_path_is_refused_by_how_several_are_given(path: Any) -> None:
    with pytest.raises(StepwellError, match=rf"a {type(path).__name__} is no path. Give one path or address\. Several"):
        stepwell.open(path)
