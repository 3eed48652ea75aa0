"""Files that a numbered sequence lacks are found by their names."""

import pytest

from stepwell.formats.numbered_files import skipped_numbers


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["a-000000.tar", "a-000001.tar", "a-000003.tar"], ["a-000002.tar"]),
        (["a-8.tar", "a-9.tar", "a-11.tar"], ["a-10.tar"]),
        (["a-08.tgz", "a-09.tgz", "a-11.tgz"], ["a-10.tgz"]),
        (
            ["a-00001-of-00004.tar.gz", "a-00002-of-00004.tar.gz"],
            ["a-00000-of-00004.tar.gz", "a-00003-of-00004.tar.gz"],
        ),
        (["a-0.tar", "a-1.tar", "b-2.tar", "b-4.tar"], ["b-3.tar"]),
        # whole, or no sequence
        (["a-000001.tar", "a-000002.tar"], []),
        (["20240101.tar", "20240301.tar", "7f3a.tar", "a.tar", "99.tar.bak"], []),
        (["a-1-of-99999999999999.tar"], []),
        ([], []),
    ],
)
def test_gaps_of_numbers_are_found(names: list[str], lost: list[str]) -> None:
    assert skipped_numbers(names) == lost
