"""The command's verbs: what they print, where, and their exit codes."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import stepwell
from stepwell.cli import inspecting
from stepwell.cli.benching import describe_environment
from stepwell.cli.main import main, make_parser
from stepwell.errors import LeftOutWarning, WorkerError

VERBS = (
    *("demo", "info", "ls", "show", "head", "stats", "diff", "verify", "view", "convert", "export", "rm", "split"),
    *("merge", "edit", "bench", "serve", "top", "warm", "cache", "env"),
)
READING = (
    *("info", "ls", "show", "head", "stats", "diff", "verify", "convert", "export", "rm", "bench", "cache", "env"),
)


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
        ["ls", "x.well", "--first", "2", "--last", "2"],
        ["head", "x.well", "-n", "0"],
        ["head", "x.well", "--episode", "one"],
        ["stats", "x.well", "--episodes", "3"],
        ["diff", "x.well"],
        ["diff", "x.well", "y.well", "--tolerance", "-1"],
        ["rm", "x.well", "a"],
        ["split", "x.well", "out"],
        ["split", "x.well", "out", "train"],
        ["merge", "x.well"],
        ["cache", "--unused", "0"],
        ["completion", "tcsh"],
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
    assert captured.err.count("\n") == 1
    assert "invalid _" not in captured.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["inof"], "there is no verb 'inof'. Did you mean 'info'?"),
        (["fly"], "There are: demo, info"),
        (["list", "x.well"], "there is no verb 'list'. Here it is ls. There are:"),
        (["delete", "x.well"], "there is no verb 'delete'. Here it is rm. There are:"),
        (["export", "x.well", "y", "--format", "rlds"], "is not understood. Here it is --to. See"),
        (["ls", "x.well", "--jsno"], "--jsno is not understood. Did you mean '--json'? See stepwell ls --help"),
        (["ls", "x.well", "--fisrt=3"], "Did you mean '--first'?"),
        (["edit", "delte", "x"], "there is no action 'delte'. Did you mean 'delete'?"),
        (["edit", "delete", "x", "3", "--uot", "y"], "Did you mean '--out'? See stepwell edit delete --help"),
        (["export", "a", "b", "--to", "webdatset"], "Did you mean 'webdataset'?"),
        (["info", "a", "b"], "b is not understood. See stepwell info --help"),
    ],
)
def test_what_was_meant_is_suggested(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert meant in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["info", "toy.wel"], "Did you mean 'toy.well'?"),
        (["info", "lerobt:///data/x"], "Did you mean 'lerobot'?"),
        (["convert", "toy.well", "x.well", "--codec", "jpg"], "Did you mean 'jpeg'?"),
        (["convert", "toy.well", "x.well", "--codec", "acton=zstd"], "Did you mean 'action'?"),
        (["convert", "toy.wel", "x.well", "--codec", "png"], "Did you mean 'toy.well'?"),
        (["convert", "toy.well", "x.well", "--from", "lerobott"], "Did you mean 'lerobot'?"),
        (["bench", "toy.well", "--field", "acton=0:2"], "Did you mean 'action'?"),
        (["show", "toy.well", "0", "--out", "x.png", "--feature", "observation.imag"], "Did you mean"),
    ],
)
def test_names_in_the_data_are_suggested(
    toy_path: Path, words: list[str], meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy_path.parent)
    assert main(words) == 1
    told = capsys.readouterr().err
    assert meant in told and told.count("\n") == 1


def test_an_error_has_no_traceback_but_with_debug(
    toy_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(store: object) -> None:
        raise ZeroDivisionError("never thought of")

    assert main(["show", str(toy_path), "99", "--debug"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told and told.splitlines()[-1].startswith("EpisodeNotFoundError: no episode 99")
    monkeypatch.setattr("stepwell.cli.inspecting.make_table", fail)
    assert main(["info", str(toy_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("ZeroDivisionError: never thought of (not foreseen: --debug") and told.count("\n") == 1
    assert main(["--debug", "info", str(toy_path)]) == 1
    assert "in fail" in capsys.readouterr().err


def test_what_a_worker_appended_to_its_error_is_for_debugging(
    toy_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(store: object) -> None:
        raise WorkerError("item 3: ValueError: x\n\nTraceback (most recent call last):\n  line of code")

    monkeypatch.setattr("stepwell.cli.inspecting.make_table", fail)
    assert main(["info", str(toy_path)]) == 1
    assert capsys.readouterr().err == "WorkerError: item 3: ValueError: x\n"
    assert main(["info", str(toy_path), "--debug"]) == 1
    assert "line of code" in capsys.readouterr().err


def test_a_warning_is_one_line(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    make_table = inspecting.make_table

    def warn(store: stepwell.Store) -> object:
        shown.append(warnings.formatwarning("some is left out", LeftOutWarning, "file.py", 3, "line of code"))
        return make_table(store)

    before = warnings.formatwarning
    monkeypatch.setattr("stepwell.cli.inspecting.make_table", warn)
    assert main(["info", str(toy_path)]) == 0
    assert shown == ["LeftOutWarning: some is left out\n"]
    assert warnings.formatwarning is before


def test_ctrl_c_is_quiet(toy_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(store: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepwell.cli.inspecting.make_table", interrupt)
    assert main(["info", str(toy_path)]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [["info"], ["ls"], ["show", "0"], ["head"], ["stats"], ["verify"], ["bench"]])
def test_a_missing_store_is_one_clean_line_and_exit_one(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], str(tmp_path / "none.well"), *words[1:]]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("StoreNotFoundError: ")
    assert captured.err.count("\n") == 1


def test_help_is_a_verb_too(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for words in (["help"], ["--help"], ["help", "ls"], ["ls", "--help"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and printed[2] == printed[3] != printed[0]


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
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
    for words in (f"ls {toy_path}", "--help"):
        command = f"{sys.executable} -m stepwell {words} | head -n 0; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_locale_without_a_letter_loses_no_list(tmp_path: Path) -> None:
    with stepwell.create(tmp_path / "a.well") as store, store.writer() as writer:
        writer.add_episode({"x": [1, 2]}, task="größer")
    for words, told in ((["ls"], rb"gr\xf6\xdfer"), (["info"], rb"\u2588")):
        done = subprocess.run(
            [sys.executable, "-m", "stepwell", *words, str(store.path)],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert told in done.stdout


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
