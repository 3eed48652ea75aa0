"""The command's verbs: what they print, where, and their exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli.benching import describe_environment
from stepwell.cli.main import main, make_parser

VERBS = ("demo", "info", "ls", "show", "verify", "convert", "export", "edit", "bench", "env")
READING = ("info", "ls", "show", "verify", "convert", "export", "bench", "env")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    assert f"examples:\n  stepwell {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", READING)
def test_every_verb_that_reads_takes_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["info"],
        ["show", "x.well", "three"],
        ["show", "x.well", "3:"],
        ["bench", "x.well", "--field", "action=a"],
        ["bench", "x.well", "--batch-size", "0"],
        ["bench", "x.well", "--batch-size", "many"],
        ["bench", "x.well", "--threads", "-1"],
        ["bench", "x.well", "--seconds", "inf"],
        ["bench", "x.well", "--seconds", "soon"],
        ["ls", "x.well", "--last", "0"],
        ["show", "x.well", "0", "--out", "sheet.xyz"],
        ["export", "a.well", "b", "--fps", "0"],
        ["demo", "--image", "gif"],
        ["convert", "a.well"],
        ["export", "a.well"],
        ["export", "a.well", "b", "--version", "v2.0"],
        ["export", "a.well", "b", "--rename", "action"],
        ["convert", "a.well", "--codec", "image=jpeg"],
        ["convert", "a.well", "b.well", "--codec", "=jpeg"],
        ["convert", "a.well", "b.well", "--codec", "image="],
        ["convert", "a.well", "b.well", "--codec", "image=jpeg", "--option", ".quality=9"],
        ["convert", "a.well", "b.well", "--codec", "image=jpeg", "--option", "image.quality"],
        ["convert", "a.well", "b.well", "--codec", "image=jpeg", "--episodes", "3"],
        ["convert", "a.well", "b.well", "--codec", "image=jpeg", "--episodes", "a:b"],
        ["convert", "a.well", "b.well", "--codec", "image=jpeg", "--workers", "-1"],
    ],
)
def test_a_wrong_command_line_exits_with_two_and_says_why(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error:" in captured.err
    assert "invalid _" not in captured.err


@pytest.mark.parametrize("words", [["info"], ["ls"], ["show", "0"], ["verify"], ["bench"]])
def test_a_missing_store_is_one_clean_line_and_exit_one(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], str(tmp_path / "none.well"), *words[1:]]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("StoreNotFoundError: ")
    assert captured.err.count("\n") == 1


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import stepwell

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepwell {stepwell.__version__}\n"


def test_info_prints_the_table(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(toy_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("<Store toy.well  3 episodes  18 steps  10 fps  ")
    assert "min 4  median 6  max 8" in out


def test_info_as_json_has_the_same_numbers(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(toy_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["num_episodes"], record["num_steps"]) == (3, 18)
    assert [row["shape"] for row in record["features"]] == [[24, 32, 3], [2], [None]]


def test_ls_prints_a_line_an_episode(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(toy_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["0", "4", "-", "score=0"],
        ["1", "6", "terminated", "score=0.3333"],
        ["2", "8", "truncated", "score=0.6667"],
    ]


def test_ls_as_json_is_one_object_a_line(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(toy_path), "--json", "--last", "2"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["episode_index"], record["length"], record["terminated"]) for record in records] == [
        (1, 6, True),
        (2, 8, False),
    ]


def test_verify_of_a_good_store_exits_with_zero(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(toy_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_ok"] is True


def test_verify_names_a_damaged_file_and_exits_with_one(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = toy_path.rglob("action.npy")
    path.chmod(0o644)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert main(["verify", str(toy_path)]) == 1
    assert "action.npy" in capsys.readouterr().out


def test_env_lists_every_extra_that_brings_a_codec() -> None:
    described = describe_environment()["packages"]
    assert {"image", "zstd", "lz4", "video"} <= set(described)
    assert described["video"].keys() == {"av"}


def test_env_says_versions_and_extras(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["packages"]["core"]["numpy"]
    assert record["num_cores"] >= 1
    assert main(["env"]) == 0
    assert "numpy" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error(toy_path: Path) -> None:
    command = f"{sys.executable} -m stepwell ls {toy_path} | head -n 0; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_parser_knows_negative_episodes_and_ranges() -> None:
    parse = make_parser().parse_args
    assert parse(["show", "x", "-1"]).where == (-1, None)
    assert parse(["show", "x", "--", "-1:-2"]).where == (-1, -2)
    assert parse(["bench", "x", "--field", "a=-1,0", "--field", "b=0:8:2", "--field", "c"]).field == [
        ("a", (-1, 0)),
        ("b", (0, 2, 4, 6)),
        ("c", ()),
    ]


def test_a_module_of_codecs_in_the_current_directory_is_imported_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "codecs_of_cli.py").write_text(
        "import numpy as np, stepwell\n"
        "@stepwell.register_codec\n"
        "class Plain(stepwell.Codec):\n"
        "    name = 'plain-of-cli'\n"
        "    def encode(self, value): return value.tobytes()\n"
        "    def decode(self, blob): return np.frombuffer(blob.tobytes(), '<f4').reshape(self.feature.fixed_shape)\n"
    )
    monkeypatch.chdir(tmp_path)
    record = (
        "import numpy as np, stepwell, codecs_of_cli\n"
        "store = stepwell.create('own.well', {'state': stepwell.Array(3, codec='plain-of-cli')})\n"
        "with store.writer() as writer: writer.add_episode({'state': np.full((4, 3), 2.5, 'f4')})\n"
    )
    subprocess.run([sys.executable, "-c", record], check=True)
    assert main(["show", "own.well", "0:1"]) == 1
    assert "--import codecs_of_cli" in capsys.readouterr().err
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["show", "own.well", "0:1", "--import", "codecs_of_cli"]) == 0
    assert "2.5" in capsys.readouterr().out
    assert main(["info", "own.well", "--import", "codecs_of_nobody"]) == 1
    assert "--import codecs_of_nobody" in capsys.readouterr().err


def test_what_the_disk_refuses_is_one_line(toy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("imagecodecs")
    (tmp_path / "file").write_text("no directory")
    assert main(["convert", str(toy_path), str(tmp_path / "file" / "x.well"), "--codec", "jpeg"]) == 1
    told = capsys.readouterr().err
    assert str(tmp_path / "file") in told and told.count("\n") == 1
