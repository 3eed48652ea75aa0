"""Every Python block of the README and of docs/ runs as it is pasted, in order, one namespace a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return (line number, code) of the Python blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__readme__"}
    for line, code in blocks(page):
        # blank lines in front make a traceback show the line of the page
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def test_the_readme_is_there_and_says_its_name() -> None:
    assert PAGES[0].read_text(encoding="utf-8").startswith("# stepwell")
