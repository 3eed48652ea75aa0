"""The command ``stepwell``: its verbs and their options.

This module imports nothing but the standard library, so that ``--help`` answers at once; a verb's own module is
loaded when the verb runs. Exit codes: 0 all is well, 1 a fault was found or the work failed, 2 the command line was
wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.cli.argument_types import (
    episode_and_step,
    episode_range,
    episodes,
    field_and_offsets,
    name_and_codec,
    name_and_name,
    option_of_feature,
    part,
    picture_path,
    place,
    positive,
    rate,
    seconds,
    setting,
    threads,
)
from stepwell.errors import StepwellError

__all__ = ["main", "make_parser"]

EXIT_OK, EXIT_FAULT, EXIT_INTERRUPTED = 0, 1, 130
# read by stepwell.references.trusted_paths
TRUST = "STEPWELL_TRUST"
DESCRIPTION = "Stores of steps: record them once, stream any window of them at memory speed."
EPILOG = """\
examples:
  stepwell demo                          record a real simulator, stream windows of it, draw a contact sheet
  stepwell info pusht.well               what is in a store, and how large
  stepwell show pusht.well 3:17          step 17 of episode 3
  stepwell verify pusht.well             check every byte against its checksum
  stepwell convert pusht.well small.well --codec camera=jpeg
  stepwell convert lerobot://lerobot/pusht pusht.well

exit codes: 0 all is well, 1 a fault was found, 2 the command line was wrong
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="stepwell", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for add_verb in (
        _add_demo,
        _add_info,
        _add_ls,
        _add_show,
        _add_verify,
        _add_convert,
        _add_export,
        _add_edit,
        _add_bench,
        _add_serve,
        _add_top,
        _add_view,
        _add_warm,
        _add_env,
    ):
        add_verb(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        from stepwell import __version__

        print(f"stepwell {__version__}")
        return EXIT_OK
    if arguments.verb is None:
        parser.error(
            "a verb is needed: demo, info, ls, show, verify, convert, export, edit, bench, serve, top, view or env. "
            "See stepwell --help"
        )
    try:
        return _run(arguments)
    except StepwellError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAULT
    except BrokenPipeError:
        # the reader of a pipe (head, less) has seen enough; Python must not complain about it when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as error:
        # the disk's own words name the file: it may not be written, or its directory is none
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_FAULT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    _import_modules(getattr(arguments, "modules", ()))
    module, _, function = arguments.run.partition(":")
    with _trusting(getattr(arguments, "trusted", ())):
        code = getattr(import_module(f"stepwell.cli.{module}"), function)(arguments)
    sys.stdout.flush()
    return int(code)


@contextmanager
def _trusting(directories: Sequence[str]) -> Iterator[None]:
    """Trust directories for one run, in the processes that it starts, too."""
    wrong = [directory for directory in directories if "://" in directory or os.pathsep in directory]
    if wrong:
        raise StepwellError(
            f"--trust {wrong[0]}: give a directory of this machine, without {os.pathsep!r} in its name."
        )
    before = os.environ.get(TRUST)
    if directories:
        os.environ[TRUST] = os.pathsep.join([*directories, *filter(None, [before])])
    try:
        yield
    finally:
        if before is not None:
            os.environ[TRUST] = before
        else:
            os.environ.pop(TRUST, None)


def _import_modules(names: Sequence[str]) -> None:
    """Import what the user names, from the current directory, too, as ``python -m`` does."""
    here = str(Path.cwd())
    if names and not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise StepwellError(
                f"--import {name}: {error}. Give a module (my_codecs, not my_codecs.py) that is installed or in "
                "the current directory."
            ) from error


def _add(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], run: str, name: str, line: str, examples: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=line,
        description=line[0].upper() + line[1:] + ".",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_path_and_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=place, metavar="PATH", help="directory of the store, or an address: FORMAT://PATH")
    _add_with(parser, "an option of the address's reader, such as split=val")
    _add_json(parser)
    _add_import_and_trust(parser)


def _add_repeated(
    parser: argparse.ArgumentParser,
    flag: str,
    metavar: str,
    line: str,
    *,
    dest: str | None = None,
    type: Callable[[str], Any] = str,
) -> None:
    """Add a flag that may be given several times; none is an empty list."""
    dest = dest or flag.removeprefix("--")
    help_line = f"{line}; may be repeated"
    parser.add_argument(flag, dest=dest, action="append", default=[], type=type, metavar=metavar, help=help_line)


def _add_with(parser: argparse.ArgumentParser, what: str) -> None:
    _add_repeated(parser, "--with", "OPTION=VALUE", what, dest="settings", type=setting)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_import_and_trust(parser: argparse.ArgumentParser) -> None:
    line = "import a module first: one that registers a codec of your own"
    _add_repeated(parser, "--import", "MODULE", line, dest="modules")
    line = "a directory that links of the data set and references of the store may lead to"
    _add_repeated(parser, "--trust", "DIR", line, dest="trusted")


def _add_demo(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "demo:run_demo",
        "demo",
        "record a real simulator, stream windows of it, draw a contact sheet",
        "  stepwell demo\n  stepwell demo --episodes 5 --out /tmp/try --image png",
    )
    parser.add_argument("--out", type=Path, default=Path("demo-output"), metavar="DIR", help="default: demo-output")
    parser.add_argument("--episodes", type=positive, default=30, metavar="N", help="default: 30")
    parser.add_argument(
        "--image", choices=("jpeg", "png", "raw"), default="jpeg", help="codec of the camera, default: jpeg"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the simulator and of the order, default: 0"
    )


def _add_info(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_path_and_json(
        _add(
            verbs,
            "inspecting:run_info",
            "info",
            "print what is in a store and how large it is",
            "  stepwell info pusht.well\n  stepwell info pusht.well --json",
        )
    )


def _add_ls(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "inspecting:run_ls",
        "ls",
        "list the episodes of a store: index, length, how it ended, metadata",
        "  stepwell ls pusht.well\n"
        "  stepwell ls pusht.well --last 10\n"
        "  stepwell ls pusht.well --json     one object a line",
    )
    _add_path_and_json(parser)
    parser.add_argument("--last", type=positive, metavar="N", help="only the last N episodes")


def _add_show(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "inspecting:run_show",
        "show",
        "print one episode or one step, or draw an episode's images",
        "  stepwell show pusht.well 3              episode 3\n"
        "  stepwell show pusht.well 3:17           its step 17\n"
        "  stepwell show pusht.well 3:-1           its last step\n"
        "  stepwell show pusht.well 3 --out 3.png  a contact sheet of its images\n"
        "  stepwell show pusht.well -- -1:0        the first step of the last episode",
    )
    _add_path_and_json(parser)
    parser.add_argument(
        "where", type=episode_and_step, metavar="EPISODE[:STEP]", help="negative numbers count from the end"
    )
    parser.add_argument(
        "--out", type=picture_path, metavar="FILE.png", help="write a contact sheet of the images of the whole episode"
    )
    parser.add_argument("--feature", metavar="NAME", help="the image feature on the sheet, default: the first")
    parser.add_argument("--tiles", type=positive, default=24, metavar="N", help="images on the sheet, default: 24")


def _add_verify(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "inspecting:run_verify",
        "verify",
        "check every byte of a store against its checksum, or look for what breaks training from a LeRobot dataset",
        "  stepwell verify pusht.well && echo fine\n"
        "  stepwell verify pusht.well --deep\n"
        "  stepwell verify data/pusht       a directory of LeRobot: what silently breaks training, and what to do\n"
        "  stepwell verify lerobot://lerobot/pusht --episodes 0:10 --deep",
    )
    _add_path_and_json(parser)
    parser.add_argument("--deep", action="store_true", help="decode every encoded row, too")
    parser.add_argument("--episodes", type=episode_range, metavar="FIRST:STOP", help="of a LeRobot dataset: only these")


def _add_convert(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "converting:run_convert",
        "convert",
        "make a store of a data set of another system, or of a store with some features by another codec",
        "  stepwell convert lerobot://lerobot/pusht pusht.well\n"
        "  stepwell convert bridge/1.0.0 bridge.well --with split=train[:90%]\n"
        "  stepwell convert my-lerobot-dataset fast.well --codec jpeg --option quality=90 --episodes 0:100\n"
        "  stepwell convert pusht.well small.well --codec camera=jpeg --option camera.quality=90\n"
        "  stepwell convert arm.well arm-video.well --codec front=video --option front.gop=10 --codec wrist=jpeg",
    )
    parser.add_argument(
        "source",
        type=place,
        metavar="SOURCE",
        help="a store, or a data set of another system: a path, or FORMAT://PATH",
    )
    parser.add_argument(
        "target",
        type=Path,
        metavar="TARGET",
        help="directory of the new store; must not be there, unless interrupted: the same command goes on",
    )
    parser.add_argument(
        "--from", dest="reader", metavar="FORMAT", help="of the source, e.g. tfds; default: found by looking"
    )
    line = "new codec of a feature, or of all images: raw, jpeg, png, zstd, lz4, delta, video; others stay as they are"
    _add_repeated(parser, "--codec", "[FEATURE=]CODEC", line, type=name_and_codec)
    line = "an option of the new codec"
    _add_repeated(parser, "--option", "[FEATURE.]OPTION=VALUE", line, type=option_of_feature)
    parser.add_argument("--workers", type=threads, metavar="N", help="processes, default: one a processor")
    _add_executor(parser)
    parser.add_argument("--episodes", type=episode_range, metavar="FIRST:STOP", help="only these, default: all")
    parser.add_argument("--revision", metavar="NAME", help="tag, branch or commit of a source on the hub")
    _add_repeated(parser, "--ignore", "NAME", "a feature to leave out")
    _add_with(parser, "an option of the source's reader")
    _add_json(parser)
    _add_import_and_trust(parser)


def _add_export(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "converting:run_export",
        "export",
        "write a store as a data set of another system (LeRobot, FFCV's .beton, WebDataset, RLDS, TFDS), or an episode "
        "as a file for people (HTML, mp4, Rerun's .rrd)",
        "  stepwell export pusht.well pusht --task 'Push the T to the goal'\n"
        "  stepwell export pusht.well pusht-v21 --version v2.1 --cameras image --episodes 0:100\n"
        "  stepwell export today.well pusht --append\n"
        "  stepwell export pusht.well pusht.beton\n"
        "  stepwell export pusht.well shards --to webdataset --with shard_bytes=500MB\n"
        "  stepwell export pusht.well rlds/pusht --to rlds --with split=val\n"
        "  stepwell export arm.well arm --feature camera --feature action --rename camera=observation.images.front\n"
        "  stepwell export pusht.well 3.html --episode 3   a page that needs no server; 3.mp4 and 3.rrd likewise",
    )
    parser.add_argument(
        "source", type=place, metavar="STORE", help="directory of the store, or an address: FORMAT://PATH"
    )
    parser.add_argument("target", type=Path, metavar="DST", help="of the data set, file or directory; not there yet")
    parser.add_argument(
        "--to",
        choices=("lerobot", "beton", "webdataset", "rlds", "tfds", "html", "mp4", "rrd"),
        help="the format, default: what DST ends in (.beton, .html, .mp4, .rrd), else lerobot",
    )
    _add_with(parser, "an option of the format's writer, such as shard_bytes=500MB")
    parser.add_argument(
        "--version",
        dest="format_version",
        choices=("v3.0", "v2.1"),
        default="v3.0",
        help="of LeRobot's format, default: v3.0",
    )
    parser.add_argument("--task", metavar="TEXT", help="of all steps, default: what the store says")
    parser.add_argument(
        "--cameras",
        choices=("auto", "image", "video"),
        default="auto",
        help="how they are stored; auto, the default: PNG and JPEG as images, others as video",
    )
    parser.add_argument("--episodes", type=episode_range, metavar="FIRST:STOP", help="only these, default: all")
    parser.add_argument("--episode", type=int, metavar="N", help="of html, mp4 and rrd, default: the only one")
    _add_repeated(parser, "--feature", "NAME", "only these, default: all")
    _add_repeated(parser, "--rename", "NAME=NEW", "a feature's name in the dataset", type=name_and_name)
    parser.add_argument("--fps", type=rate, metavar="N", help="rows a second, default: what the store says")
    parser.add_argument("--append", action="store_true", help="add to the dataset at DST, of v3.0")
    parser.add_argument("--workers", type=threads, metavar="N", help="threads that encode, default: one a processor")
    _add_executor(parser)
    _add_json(parser)
    _add_import_and_trust(parser)


def _add_edit(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "editing:run_edit",
        "edit",
        "delete, split, merge and mend LeRobot datasets, and stores where that is meant",
        "  stepwell edit delete pusht 3 17:20\n"
        "  stepwell edit split pusht parts train=0.9 val=0.1\n"
        "  stepwell edit merge monday tuesday --out both\n"
        "  stepwell edit features pusht --remove next.done --add reward=reward.npy\n"
        "  stepwell edit tasks pusht --replace 'Push it=Push the T to the goal'\n"
        "  stepwell edit stats pusht --cameras\n"
        "  stepwell edit reencode pusht --option encoder=h264 --option gop=10\n"
        "  stepwell edit to-video pusht_image --out pusht_video\n"
        "  stepwell edit rewrite pusht",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    delete = _add_action(actions, "delete", "delete episodes; the others are numbered anew")
    delete.add_argument("episodes", nargs="+", type=episodes, metavar="EPISODES", help="numbers, or FIRST:STOP")
    split = actions.add_parser("split", help="write parts as datasets, or stores, of their own")
    split.add_argument("path", type=Path, metavar="PATH", help="directory of a LeRobot dataset, or a store")
    split.add_argument("out", type=Path, metavar="DIR", help="of the parts: DIR/NAME")
    split.add_argument(
        "parts", nargs="+", type=part, metavar="NAME=EPISODES", help="numbers and FIRST:STOP by commas, or a fraction"
    )
    merge = actions.add_parser("merge", help="write the episodes of several datasets, or stores, as one")
    merge.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="directories of datasets, or of stores")
    merge.add_argument("--out", required=True, type=Path, metavar="DST", help="of the new one")
    merge.add_argument("--keep-files", action="store_true", help="join no files, however small")
    features = _add_action(actions, "features", "add features, and remove some")
    _add_repeated(features, "--add", "NAME=FILE.npy", "a feature and its values, a row each", type=name_and_name)
    _add_repeated(features, "--remove", "NAME", "a feature to leave out")
    tasks = _add_action(actions, "tasks", "give steps other tasks; number the texts, each once")
    tasks.add_argument("--task", metavar="TEXT", help="of all steps that the others say nothing of")
    _add_repeated(tasks, "--episode", "N=TEXT", "the task of an episode", type=name_and_name)
    _add_repeated(tasks, "--replace", "TEXT=NEW", "a text in the place of another", type=name_and_name)
    stats = _add_action(actions, "stats", "compute the statistics again")
    stats.add_argument("--cameras", action="store_true", help="those of cameras, too")
    for name, line in (
        ("reencode", "encode videos anew, a key frame where each episode begins"),
        ("to-video", "turn images in data files into videos"),
    ):
        encode = _add_action(actions, name, f"{line}; goes on where it was interrupted")
        _add_repeated(encode, "--camera", "NAME", "only this one; default: all")
        _add_repeated(encode, "--option", "OPTION=VALUE", "of stepwell.Video: encoder, gop, crf, preset", type=setting)
        encode.add_argument("--workers", type=threads, metavar="N", help="processes, default: one a processor")
    _add_action(actions, "renumber", "number rows, episodes and tasks anew, and write times, spans and totals by them")
    retime = _add_action(actions, "retime", "show frame n of each mp4 file at n / fps; packets stay")
    _add_repeated(retime, "--camera", "NAME", "only this one; default: all")
    _add_action(actions, "rewrite", "write all anew, as it is read: meta/, numbers, times, spans, statistics")


def _add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, line: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
    parser.add_argument("path", type=Path, metavar="PATH", help="directory of a LeRobot dataset")
    parser.add_argument("--out", type=Path, metavar="DST", help="of a new dataset; default: in place")
    return parser


def _add_executor(parser: argparse.ArgumentParser) -> None:
    line = "where the work is done: ray, or ray:ADDRESS of a cluster; default: processes of this machine"
    parser.add_argument("--executor", metavar="RAY[:ADDRESS]", help=line)


def _add_bench(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "benching:run_bench",
        "bench",
        "stream windows of a store and say how fast, beside memcpy",
        "  stepwell bench pusht.well\n"
        "  stepwell bench pusht.well --field observation.image=-1,0 --field action=0:16 --batch-size 64\n"
        "  stepwell bench pusht.well --order sequential --threads 2 --seconds 10 --json\n"
        "  stepwell bench pusht.well --order pooled --no-page-cache",
    )
    _add_path_and_json(parser)
    line = (
        "a feature and its offsets in steps: -1,0 or 0:16 or 0:16:2; default: every feature, images -1,0, others 0:16"
    )
    _add_repeated(parser, "--field", "NAME[=OFFSETS]", line, type=field_and_offsets)
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help="default: 64")
    parser.add_argument("--order", choices=("random", "sequential", "pooled"), default="random", help="default: random")
    parser.add_argument(
        "--no-page-cache",
        action="store_true",
        help="read past the system's page cache, as for a store much larger than memory",
    )
    parser.add_argument("--threads", type=threads, metavar="N", help="default: chosen by the loader")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="stop after so long, default: 5")


def _add_serve(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "serving:run_serve",
        "serve",
        "serve tables of a store to writers and learners of other processes and machines",
        "  stepwell serve run.well\n"
        "  stepwell serve run.well --table 'replay:sampler=prioritized(0.6),limiter=MinSize(1000)'\n"
        "  stepwell serve run.well --address 0.0.0.0:7070 --token-file secret --metrics 127.0.0.1:9464",
    )
    parser.add_argument("path", metavar="PATH", help="directory of the store; the state of its tables is kept there")
    line = "a table and its options: sampler, remover, max_size, max_times_sampled, limiter, length, ahead, every, seed"
    _add_repeated(parser, "--table", "NAME[:OPTION=VALUE,...]", line)
    parser.add_argument("--address", default="127.0.0.1:7070", metavar="HOST:PORT", help="default: 127.0.0.1:7070")
    _add_token(parser)
    for name, what in (("certificate", "certificate of the server, PEM"), ("key", "its private key, PEM")):
        parser.add_argument(f"--{name}", metavar="FILE", help=what)
    parser.add_argument("--authority", metavar="FILE", help="PEM: clients need certificates that lead to these")
    parser.add_argument("--insecure", action="store_true", help="let other machines connect without a token or TLS")
    parser.add_argument("--checkpoints", metavar="DIR", help="where clients may have checkpoints made")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics for Prometheus")


def _add_top(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "serving:run_top",
        "top",
        "show tables, rates, limiters and clients of servers, as they change",
        "  stepwell top 127.0.0.1:7070\n  stepwell top host1:7070 host2:7070 --once",
    )
    parser.add_argument("addresses", nargs="+", metavar="HOST:PORT", help="of a server, or of several")
    _add_token(parser)
    parser.add_argument("--authority", metavar="FILE", help="PEM: the servers' certificates lead to these")
    parser.add_argument("--once", action="store_true", help="print once and leave; so it is where there is no terminal")
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="S", help="between two looks, default: 1")
    _add_json(parser)


def _add_view(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        verbs,
        "viewing:run_view",
        "view",
        "show the episodes of a store, or the tables of a server, in a browser",
        "  stepwell view pusht.well\n  stepwell view pusht.well --host 0.0.0.0     prints an address with a token\n"
        "  stepwell view pusht.well --edit             mark episodes, save selections\n"
        "  stepwell view 127.0.0.1:7070                tables of `stepwell serve`",
    )
    line = "directory of the store, an address: FORMAT://PATH, or HOST:PORT of a server"
    parser.add_argument("path", type=place, metavar="PATH", help=line)
    _add_with(parser, "an option of the address's reader, such as split=val")
    _add_import_and_trust(parser)
    _add_token(parser)
    parser.add_argument("--authority", metavar="FILE", help="PEM: the server's certificate leads to these")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="to listen on, default: 127.0.0.1")
    parser.add_argument("--port", type=positive, default=7080, metavar="N", help="default: 7080")
    parser.add_argument("--edit", action="store_true", help="let the page mark episodes and save selections")
    parser.add_argument("--once", action="store_true", help="print the address and leave")


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token-file", metavar="FILE", help="holds the text that clients send")


def _add_warm(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add(
        verbs,
        "benching:run_warm",
        "warm",
        "compile all kernels now, so that no run waits for them",
        "  stepwell warm",
    )


def _add_env(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_json(
        _add(
            verbs,
            "benching:run_env",
            "env",
            "print versions, cores, memory and extras, for a bug report",
            "  stepwell env",
        )
    )
