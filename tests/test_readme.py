"""What README.md and docs/ show is what happens: their blocks run as pasted, in order, and print what they say.

Which blocks run::

    ```python                 runs; one namespace a page, in an empty directory a page
    <!-- needs: torch -->     on the line before a block: left out where torch is not installed
    <!-- file: NAME.py -->    on the line before a block: it is written to a file, which later blocks import
    <!-- run -->              on the line before a ```sh block: runs, too; other shell blocks are only shown
    ```output                 after a block that runs: exactly what it prints, ``...`` stands for anything
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.cli.main import make_parser
from stepwell.codecs import codec

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "design").glob("*.md"))]
FENCE = re.compile(r"(?:^<!-- (?P<mark>.+?) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)\s]*)?\)")
WIDEST_LINE = 160
QUICK_START_LINES = 15
README_LINES = 200


@dataclass(frozen=True)
class Block:
    """A block that runs, the line where its code begins, and what it must print, if the page says so."""

    line: int
    kind: str
    code: str
    needs: tuple[str, ...]
    output: str | None
    file: str | None = None


def fences(text: str) -> list[re.Match[str]]:
    return list(FENCE.finditer(text))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that run."""
    text = page.read_text(encoding="utf-8")
    found = fences(text)
    for fence, after in zip(found, [*found[1:], None][: len(found)], strict=True):
        mark = fence["mark"] or ""
        if fence["kind"] != "python" and not (fence["kind"] == "sh" and mark == "run"):
            continue
        shown = None
        if after is not None and after["kind"] == "output" and not text[fence.end() : after.start()].strip():
            shown = after["code"]
        needs = tuple(mark.removeprefix("needs:").replace(",", " ").split()) if mark.startswith("needs:") else ()
        file = mark.removeprefix("file:").strip() if mark.startswith("file:") else None
        yield Block(text.count("\n", 0, fence.start("code")) + 1, fence["kind"], fence["code"], needs, shown, file)


# what a shell runs as ``stepwell``: arguments and files go to a thread of the tests, and the exit code comes back
CLIENT = """#!{python} -IS
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, ["\\0".join([os.getcwd(), *sys.argv[1:]]).encode()], [0, 1, 2])
    sys.exit(int(server.recv(16)))
"""


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a command ``stepwell`` that is a fork of a process which has loaded stepwell."""
    folder = tmp_path_factory.mktemp("commands")
    # addresses of sockets are short
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        address = f"{short}/socket"
        server.bind(address)
        server.listen()
        client = folder / "stepwell"
        client.write_text(CLIENT.format(python=sys.executable, address=address))
        client.chmod(0o755)
        thread = threading.Thread(target=answer_commands, args=(server,), daemon=True)
        thread.start()
        yield folder
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def answer_commands(server: socket.socket) -> None:
    """Run commands until the socket is shut down."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            words, files, *_ = socket.recv_fds(connection, 1 << 16, 3)
            folder, *arguments = words.decode().split("\0")
            command = [sys.executable, "-m", "stepwell", *arguments]
            streams = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
            done = warm_children.run(command, cwd=folder, **streams)
            for file in files:
                os.close(file)
            connection.sendall(b"%d" % done.returncode)


def run_block(block: Block, page: Path, namespace: dict[str, object], commands: Path) -> str:
    """Run a block and return what it printed."""
    if block.file is not None:
        Path(block.file).write_text(block.code, encoding="utf-8")
        return ""
    if block.kind == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # blank lines in front make a traceback show the line of the page
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
        return printed.getvalue()
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e"], input=block.code, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False
    )
    assert done.returncode == 0, f"{page.name}:{block.line}: {done.stdout}{done.stderr}"
    return done.stdout


def matches(printed: str, shown: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in shown.rstrip().split("..."))
    return re.fullmatch(pattern, printed.rstrip(), re.DOTALL) is not None


@pytest.fixture
def _own_codecs_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the codecs and modules of a page; stepwell's own stay, since their modules are imported once."""
    before = set(codec._REGISTRY) | set(codec._BUILT_IN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
    for name in codec._REGISTRY.keys() - before:
        del codec._REGISTRY[name]


@pytest.mark.usefixtures("_own_codecs_forgotten")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(blocks(page))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_blocks_of_a_page_run_in_order_and_print_what_they_say(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, object] = {"__name__": "__main__"}
    missing: set[str] = set()
    for block in blocks(page):
        absent = {name for name in block.needs if importlib.util.find_spec(name) is None}
        missing |= absent
        if absent:
            continue
        printed = run_block(block, page, namespace, commands)
        if block.output is not None:
            assert matches(printed, block.output), f"{page.name}:{block.line} prints\n{printed}"
    if missing:
        pytest.skip(f"blocks that need {', '.join(sorted(missing))} were left out; the others ran")


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "golden").glob("v1.well")), ids=lambda path: path.name)
def test_the_reader_on_the_page_of_the_format_reads_the_golden_store(path: Path, commands: Path) -> None:
    reader = next(blocks(ROOT / "docs" / "format.md"))
    namespace: dict[str, Any] = {}
    run_block(reader, ROOT / "docs" / "format.md", namespace, commands)
    store = stepwell.open(path, mode="r")
    assert store.schema is not None
    for (record, metadata, columns), episode in zip(namespace["read_store"](path), store, strict=True):
        assert (record["length"], metadata) == (episode.length, episode.metadata)
        for name, feature in store.schema.items():
            assert len(columns[name]) == len(episode[name])
            if feature.is_raw:
                assert np.array_equal(columns[name], episode[name])


def test_dots_in_an_output_stand_for_anything_and_nothing_else_does() -> None:
    assert matches("a 17 b\n", "a ... b\n")
    assert not matches("a 17 b\n", "a ...\nb\n")
    assert not matches("a1b", "a.b")


def test_the_readme_is_short_and_its_quick_start_comes_first_and_prints_something() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES
    first = next(block for block in blocks(README) if block.kind == "python")
    assert first.line < 20
    assert first.output is not None
    assert len(first.code.splitlines()) <= QUICK_START_LINES


# bench, case and rival of each number of the README's table, in its order
HEADLINES = [
    ("lerobot_state", "2 states, 16 actions, in place", "lerobot"),
    ("lerobot_swap", "3 cameras, DataLoader of 2 workers", "lerobot"),
    ("lerobot_swap", "the same with ImageTransforms", "lerobot"),
    ("replay_service", "4 actors insert 64 steps a message", "Reverb 0.14"),
    ("replay_service", "2 learners draw 256 by priority and update", "Reverb 0.14"),
    ("rlds_windows", "2 states, 8 actions", "tf.data"),
    ("ffcv_loader", "CIFAR, raw 32x32", "ffcv"),
    ("ffcv_loader", "ImageNet, JPEG 512x384", "ffcv"),
]


def test_the_numbers_of_the_readme_are_those_that_were_measured() -> None:
    rows = [json.loads(line) for line in (ROOT / "docs" / "benchmarks.jsonl").read_text().splitlines()]
    measured = {(row["bench"], row["case"], row["rival"]): row.get("ratio") for row in rows}
    text = README.read_text(encoding="utf-8")
    table = text[text.index("## Five numbers") : text.index("## The idea")]
    shown = [
        float(number.replace(",", "")) for cell in re.findall(r"\[([\d.,; ]+)\]\(", table) for number in cell.split(";")
    ]
    assert shown == [float(f"{measured[key]:.2g}") for key in HEADLINES]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_a_page_can_be_read_on_a_screen(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if len(line) > WIDEST_LINE] == []
    assert text.count("```") % 2 == 0


def links_of(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))}


def test_every_page_is_on_the_list_of_pages_and_every_note_on_that_of_design() -> None:
    pages = ROOT / "docs" / "index.md"
    assert {pages, ROOT / "docs" / "tour.md"} <= links_of(README)
    missing = set(PAGES[1:]) - {pages} - links_of(pages)
    assert not missing, f"give each a row in docs/index.md: {sorted(page.name for page in missing)}"
    assert set((ROOT / "design").glob("[0-9]*.md")) <= links_of(ROOT / "design" / "README.md")


FOLDERS = sorted(path.parent for path in (ROOT / "src" / "stepwell").glob("*/README.md"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_readme_of_a_folder_names_every_module_and_no_other(folder: Path) -> None:
    named = set(re.findall(r"^ *(\w+\.py) ", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {path.name for path in folder.glob("*.py")} - {"__init__.py"}


def test_a_folder_of_many_modules_has_a_readme() -> None:
    sizes = {path: len(list(path.glob("*.py"))) for path in (ROOT / "src" / "stepwell").iterdir() if path.is_dir()}
    assert {path for path, size in sizes.items() if size > 7} <= set(FOLDERS)


def test_every_word_of_the_glossary_is_there_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)
    assert len(words) > 20
    assert sorted(set(words)) == sorted(words)


def test_names_that_pages_take_from_stepwell_exist() -> None:
    for page in PAGES:
        for name in set(re.findall(r"\bstepwell\.([A-Za-z]\w*)\(", page.read_text(encoding="utf-8"))):
            assert hasattr(stepwell, name), f"{page.name}: stepwell.{name}"


def test_the_page_of_the_command_line_names_every_verb() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    verbs = next(action.choices for action in make_parser()._actions if action.dest == "verb")
    assert verbs
    assert [verb for verb in verbs if f"`stepwell {verb}" not in text] == []
