"""Where references may lead: names, dots, links, addresses."""

from pathlib import Path

import pytest

from stepwell.errors import SchemaError, UntrustedFileError
from stepwell.references.file_codec import NumberedFileCodec
from stepwell.references.trusted_paths import check_reach, reach_of
from stepwell.schema import Feature, Image


def test_what_a_file_tells_of_leads_nowhere_and_what_code_makes_anywhere() -> None:
    feature = Image((4, 4, 3), codec="png")
    assert feature.reach is None
    assert Feature.from_json(feature.to_json()).reach == ()
    assert "reach" not in feature.to_json()
    assert Feature.from_json({**feature.to_json(), "reach": None}).reach == ()


def test_dots_and_links_do_not_lead_out_of_a_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "set", tmp_path / "set2"
    root.mkdir()
    outside.mkdir()
    for place in (root / "a", outside / "a"):
        place.write_bytes(b"")
    (root / "inside").symlink_to(root / "a")
    (root / "away").symlink_to(outside / "a")
    (root / "folder").symlink_to(outside)
    (tmp_path / "other_name").symlink_to(root)
    reach = reach_of(tmp_path / "other_name")
    for name in ("a", "inside", "../set/a", "../other_name/a"):
        check_reach(f"{root}/{name}", reach)
    for name in ("away", "folder/a", "../set2/a", "..", "../../etc/passwd"):
        with pytest.raises(UntrustedFileError, match="trust="):
            check_reach(f"{root}/{name}", reach)


def test_nothing_everything_several_and_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a")
    for trust in (None, False, [], "/elsewhere", "https://host/"):
        with pytest.raises(UntrustedFileError, match="STEPWELL_TRUST"):
            check_reach(path, reach_of(trust))
    for trust in (True, tmp_path, ["/elsewhere", tmp_path], str(tmp_path.parent), "/"):
        check_reach(path, reach_of(trust))
    monkeypatch.setenv("STEPWELL_TRUST", f"/elsewhere:{tmp_path}")
    check_reach(path, reach_of(None))


def test_an_address_is_reached_by_an_address_alone(tmp_path: Path) -> None:
    reach = reach_of(["https://host/set", "/"])
    check_reach("https://host/set/a.tar", reach)
    for address in (
        "https://host/set2/a",
        "https://host.evil/set/a",
        "https://host/set/../a",
        "https://host/set/%2e%2E/a",
    ):
        with pytest.raises(UntrustedFileError):
            check_reach(address, reach)
    with pytest.raises(UntrustedFileError) as told:
        check_reach("https://me:secret@host/a?token=1", reach)
    assert "secret" not in str(told.value)
    assert "token" not in str(told.value)


@pytest.mark.parametrize(
    "files",
    ["/a/{chunk.__class__}", "/a/{chunk:9999999999d}", "/a/{file!r}", "/a/{other}", "/a/{}", "/a/{chunk:{file}}"],
)
def test_a_template_has_two_numbers_and_no_more(files: str) -> None:
    from stepwell.references.file_codec import template_of

    assert template_of(Image((4, 4, 3), codec="video-file", files="/a/{{b}}/{chunk:03d}/{file}.mp4"))
    with pytest.raises(SchemaError, match="chunk"):
        template_of(Image((4, 4, 3), codec="video-file", files=files))
    assert NumberedFileCodec is not None
