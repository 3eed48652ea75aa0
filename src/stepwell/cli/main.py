"""The command ``stepwell``: its verbs and their options.

This module imports nothing but the standard library, so that ``--help`` answers at once; a verb's own module is
loaded when the verb runs. Exit codes: 0 all is well, 1 a fault was found or the work failed, 2 the command line was
wrong.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from stepwell.cli.argument_types import (
    days,
    directory,
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
    port,
    positive,
    rate,
    seconds,
    setting,
    threads,
    tolerance,
    whole,
)
from stepwell.cli.parsing import (
    Parser,
    Verbs,
    add_import_and_trust,
    add_json,
    add_path_and_json,
    add_repeated,
    add_verb,
    add_where,
    add_with,
    completed_by,
)
from stepwell.cli.terminal import in_a_line, print_folded, visible
from stepwell.errors import StepwellError

__all__ = ["main", "make_parser"]

EXIT_OK, EXIT_FAULT, EXIT_INTERRUPTED = 0, 1, 130
# read by stepwell.references.trusted_paths
TRUST = "STEPWELL_TRUST"
# set by a shell that asks what may come next, see `stepwell completion`
COMPLETING = "_ARGCOMPLETE"
DESCRIPTION = "Stores of steps: record them once, stream any window of them at memory speed."
EPILOG = """\
examples:
  stepwell demo                          record a real simulator, stream windows of it, draw a contact sheet
  stepwell info pusht.well               what is in a store, and how large
  stepwell ls pusht.well --where 'not success' --sort length
  stepwell show pusht.well 3:17          step 17 of episode 3
  stepwell verify pusht.well             check every byte against its checksum
  stepwell convert pusht.well small.well --codec camera=jpeg
  stepwell convert lerobot://lerobot/pusht pusht.well

exit codes: 0 all is well, 1 a fault was found or the work failed, 2 the command line was wrong, 130 interrupted
"""


def make_parser() -> Parser:
    """Return the parser of the whole command."""
    parser = Parser(prog="stepwell", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for add in (
        _add_demo,
        _add_info,
        _add_ls,
        _add_show,
        _add_head,
        _add_stats,
        _add_diff,
        _add_verify,
        _add_view,
        _add_convert,
        _add_export,
        _add_rm,
        _add_split,
        _add_merge,
        _add_edit,
        _add_bench,
        _add_serve,
        _add_top,
        _add_warm,
        _add_cache,
        _add_completion,
        _add_env,
    ):
        add(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    # until the command line is known, see `_run`
    is_debugged = False
    # a shell may have closed them: what is opened later must not take their place
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a locale without a letter of a text, or half of a surrogate pair, is no reason to say nothing
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        parser = make_parser()
        if COMPLETING in os.environ:
            _complete(parser)
        words = sys.argv[1:] if argv is None else list(argv)
        # what many commands have as a verb
        arguments = parser.parse_args([*words[1:2], "--help"] if words[:1] == ["help"] else words)
        is_debugged = getattr(arguments, "debug", False)
        if arguments.version:
            from stepwell import __version__

            print(f"stepwell {__version__}")
            return EXIT_OK
        if arguments.verb is None:
            parser.error("a verb is needed, such as info, ls or convert.")
        return _run(arguments)
    except BrokenPipeError:
        # the reader of a pipe (head, less) has seen enough; Python must not complain about it when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _tell(error, is_debugged)


def _tell(error: Exception, is_debugged: bool) -> int:
    """Print what went wrong in one line, and where with ``--debug``; return the exit code."""
    if is_debugged:
        print(visible("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    # what a worker process appended
    text = f"{type(error).__name__}: {error}".partition("\n\nTraceback")[0]
    if not isinstance(error, StepwellError | OSError):
        # the disk's own words, of an OSError, name the file; of any other nobody has thought
        text += " (not foreseen: --debug shows where, please report it)"
    print_folded(in_a_line(text), sys.stderr)
    return EXIT_FAULT


def _complete(parser: Parser) -> None:
    """Answer the shell, and leave; return where argcomplete is not installed."""
    with suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser)


def _run(arguments: argparse.Namespace) -> int:
    _import_modules(getattr(arguments, "modules", ()))
    module, _, function = arguments.run.partition(":")
    with _trusting(getattr(arguments, "trusted", ())), _warning_in_a_line():
        code = getattr(import_module(f"stepwell.cli.{module}"), function)(arguments)
    sys.stdout.flush()
    return int(code)


@contextmanager
def _warning_in_a_line() -> Iterator[None]:
    """Print warnings without the line of code that they come from."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *_, **__: visible(f"{category.__name__}: {message}\n")
    try:
        yield
    finally:
        warnings.formatwarning = before


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


def _add_demo(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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


def _add_info(verbs: Verbs[Parser]) -> None:
    add_path_and_json(
        add_verb(
            verbs,
            "inspecting:run_info",
            "info",
            "print what is in a store and how large it is",
            "  stepwell info pusht.well\n  stepwell info pusht.well --json",
        )
    )


def _add_ls(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "inspecting:run_ls",
        "ls",
        "list the episodes of a store: index, length, how it ended, metadata",
        "  stepwell ls pusht.well\n"
        "  stepwell ls pusht.well --last 10\n"
        "  stepwell ls pusht.well --where 'length > 100 and not success' --sort length --reverse --first 10\n"
        "  stepwell ls pusht.well --json     one object a line",
    )
    add_path_and_json(parser)
    add_where(parser)
    line = "sort by length, or by any other name that ls shows; episodes without it come last"
    completed_by(parser.add_argument("--sort", metavar="NAME", help=line), "facts_of_path")
    parser.add_argument("--reverse", action="store_true", help="the other way round: the largest, or the last, first")
    few = parser.add_mutually_exclusive_group()
    few.add_argument("--first", type=positive, metavar="N", help="only the first N of them")
    few.add_argument("--last", type=positive, metavar="N", help="only the last N of them")


def _add_show(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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
    add_path_and_json(parser)
    parser.add_argument(
        "where", type=episode_and_step, metavar="EPISODE[:STEP]", help="negative numbers count from the end"
    )
    parser.add_argument(
        "--out", type=picture_path, metavar="FILE.png", help="write a contact sheet of the images of the whole episode"
    )
    parser.add_argument("--feature", metavar="NAME", help="the image feature on the sheet, default: the first")
    parser.add_argument("--tiles", type=positive, default=24, metavar="N", help="images on the sheet, default: 24")


def _add_head(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "reading:run_head",
        "head",
        "print the first steps of an episode as a table",
        "  stepwell head pusht.well\n"
        "  stepwell head pusht.well --episode 3 -n 20 --feature action\n"
        "  stepwell head pusht.well --json       one object a step",
    )
    add_path_and_json(parser)
    line = "its number, default: 0; negative numbers count from the end"
    parser.add_argument("--episode", type=whole, default=0, metavar="N", help=line)
    parser.add_argument("-n", "--steps", type=positive, default=5, metavar="N", help="how many steps, default: 5")
    _add_features(parser)


def _add_stats(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "reading:run_stats",
        "stats",
        "print mean, std, min, max and quantiles of each dimension of the features",
        "  stepwell stats pusht.well\n"
        "  stepwell stats pusht.well --feature action --where success\n"
        "  stepwell stats data/pusht --episodes 0:100 --json",
    )
    add_path_and_json(parser)
    _add_features(parser)
    add_where(parser)
    parser.add_argument("--episodes", type=episode_range, metavar="FIRST:STOP", help="only these, default: all")


def _add_diff(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "reading:run_diff",
        "diff",
        "compare two stores or data sets: features, episodes, values; the exit code is 1 where they differ",
        "  stepwell diff pusht.well copy.well && echo equal\n"
        "  stepwell diff pusht.well small.well --tolerance 8    images that JPEG changed by 8 at most\n"
        "  stepwell diff pusht.well lerobot://lerobot/pusht --feature action",
    )
    parser.add_argument("path", type=place, metavar="A", help="directory of a store, or an address: FORMAT://PATH")
    parser.add_argument("other", type=place, metavar="B", help="another")
    _add_features(parser)
    line = "how far numbers may be apart, default: 0"
    parser.add_argument("--tolerance", type=tolerance, default=0.0, metavar="X", help=line)
    line = "compare features, lengths, ends and metadata, and read no values"
    parser.add_argument("--no-values", action="store_true", help=line)
    add_json(parser)
    add_import_and_trust(parser)


def _add_features(parser: Parser) -> None:
    completed_by(add_repeated(parser, "--feature", "NAME", "only these, default: all"), "features_of_path")


def _add_verify(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "inspecting:run_verify",
        "verify",
        "check every byte of a store against its checksum, or look for what breaks training from a LeRobot dataset",
        "  stepwell verify pusht.well && echo fine\n"
        "  stepwell verify pusht.well --deep\n"
        "  stepwell verify data/pusht       a directory of LeRobot: what silently breaks training, and what to do\n"
        "  stepwell verify lerobot://lerobot/pusht --episodes 0:10 --deep",
    )
    add_path_and_json(parser)
    parser.add_argument("--deep", action="store_true", help="decode every encoded row, too")
    parser.add_argument("--episodes", type=episode_range, metavar="FIRST:STOP", help="of a LeRobot dataset: only these")


def _add_convert(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "converting:run_convert",
        "convert",
        "make a store of a data set of another system, or of a store with some features by another codec",
        "  stepwell convert lerobot://lerobot/pusht pusht.well\n"
        "  stepwell convert bridge/1.0.0 bridge.well --with split=train[:90%]\n"
        "  stepwell convert my-lerobot-dataset fast.well --codec jpeg --option quality=90 --episodes 0:100\n"
        "  stepwell convert pusht good.well --where 'mark = good'\n"
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
    add_repeated(parser, "--codec", "[FEATURE=]CODEC", line, type=name_and_codec)
    line = "an option of the new codec"
    add_repeated(parser, "--option", "[FEATURE.]OPTION=VALUE", line, type=option_of_feature)
    parser.add_argument("--workers", type=threads, metavar="N", help="processes, default: one a processor")
    _add_executor(parser)
    parser.add_argument("--episodes", type=episode_range, metavar="FIRST:STOP", help="only these, default: all")
    add_where(parser)
    parser.add_argument("--revision", metavar="NAME", help="tag, branch or commit of a source on the hub")
    add_repeated(parser, "--ignore", "NAME", "a feature to leave out")
    add_with(parser, "an option of the source's reader")
    add_json(parser)
    add_import_and_trust(parser)


def _add_export(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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
    add_with(parser, "an option of the format's writer, such as shard_bytes=500MB")
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
    add_where(parser)
    parser.add_argument("--episode", type=int, metavar="N", help="of html, mp4 and rrd, default: the only one")
    add_repeated(parser, "--feature", "NAME", "only these, default: all")
    add_repeated(parser, "--rename", "NAME=NEW", "a feature's name in the dataset", type=name_and_name)
    parser.add_argument("--fps", type=rate, metavar="N", help="rows a second, default: what the store says")
    parser.add_argument("--append", action="store_true", help="add to the dataset at DST, of v3.0")
    parser.add_argument("--workers", type=threads, metavar="N", help="threads that encode, default: one a processor")
    _add_executor(parser)
    add_json(parser)
    add_import_and_trust(parser)


def _add_edit(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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
    _add_split_arguments(actions.add_parser("split", help="write parts as datasets, or stores, of their own"))
    _add_merge_arguments(actions.add_parser("merge", help="write the episodes of several datasets, or stores, as one"))
    features = _add_action(actions, "features", "add features, and remove some")
    add_repeated(features, "--add", "NAME=FILE.npy", "a feature and its values, a row each", type=name_and_name)
    add_repeated(features, "--remove", "NAME", "a feature to leave out")
    tasks = _add_action(actions, "tasks", "give steps other tasks; number the texts, each once")
    tasks.add_argument("--task", metavar="TEXT", help="of all steps that the others say nothing of")
    add_repeated(tasks, "--episode", "N=TEXT", "the task of an episode", type=name_and_name)
    add_repeated(tasks, "--replace", "TEXT=NEW", "a text in the place of another", type=name_and_name)
    stats = _add_action(actions, "stats", "compute the statistics again")
    stats.add_argument("--cameras", action="store_true", help="those of cameras, too")
    for name, line in (
        ("reencode", "encode videos anew, a key frame where each episode begins"),
        ("to-video", "turn images in data files into videos"),
    ):
        encode = _add_action(actions, name, f"{line}; goes on where it was interrupted")
        add_repeated(encode, "--camera", "NAME", "only this one; default: all")
        add_repeated(encode, "--option", "OPTION=VALUE", "of stepwell.Video: encoder, gop, crf, preset", type=setting)
        encode.add_argument("--workers", type=threads, metavar="N", help="processes, default: one a processor")
    _add_action(actions, "renumber", "number rows, episodes and tasks anew, and write times, spans and totals by them")
    retime = _add_action(actions, "retime", "show frame n of each mp4 file at n / fps; packets stay")
    add_repeated(retime, "--camera", "NAME", "only this one; default: all")
    _add_action(actions, "rewrite", "write all anew, as it is read: meta/, numbers, times, spans, statistics")


def _add_split_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=directory, metavar="PATH", help="directory of a store, or of a LeRobot dataset")
    parser.add_argument("out", type=Path, metavar="DIR", help="of the parts: DIR/NAME")
    line = "a fraction, or numbers and FIRST:STOP by commas"
    parser.add_argument("parts", nargs="+", type=part, metavar="NAME=EPISODES", help=line)
    line = "draw the episodes of fractions by this seed, as View.split does; default: one part after the other"
    parser.add_argument("--seed", type=whole, metavar="N", help=line)


def _add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=directory, metavar="PATH", help="directories of stores, or of datasets"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DST", help="of the new one")
    parser.add_argument("--keep-files", action="store_true", help="of LeRobot datasets: join no files, however small")


def _add_rm(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "editing:run_rm",
        "rm",
        "delete episodes of a store or a LeRobot dataset, after a question",
        "  stepwell rm pusht.well 3 17:20\n"
        "  stepwell rm pusht.well --where 'length < 10 or interrupted'\n"
        "  stepwell rm data/pusht 3 --yes          asks nothing",
    )
    parser.add_argument("path", type=directory, metavar="PATH", help="directory of a store, or of a LeRobot dataset")
    line = "numbers, or FIRST:STOP, negative ones from the end; with --where: those of them that meet it"
    parser.add_argument("episodes", nargs="*", type=episodes, metavar="EPISODES", help=line)
    add_where(parser)
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    add_json(parser)
    add_import_and_trust(parser)


def _add_split(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "editing:run_edit",
        "split",
        "write parts of a store or a LeRobot dataset as new ones",
        "  stepwell split pusht.well parts train=0.9 val=0.1\n"
        "  stepwell split pusht.well parts train=0.9 val=0.1 --seed 0     drawn, not cut\n"
        "  stepwell split data/pusht parts a=0:10 b=10:12,17",
    )
    parser.set_defaults(action="split")
    _add_split_arguments(parser)
    add_import_and_trust(parser)


def _add_merge(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "editing:run_edit",
        "merge",
        "write the episodes of several stores, or LeRobot datasets, as one",
        "  stepwell merge monday.well tuesday.well --out both.well",
    )
    parser.set_defaults(action="merge")
    _add_merge_arguments(parser)
    add_import_and_trust(parser)


def _add_cache(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "caching:run_cache",
        "cache",
        "list what lies in the caches, with sizes; or clear them",
        "  stepwell cache\n"
        "  stepwell cache --clear lerobot       all of a format\n"
        "  stepwell cache --clear --unused 30   what was not opened for 30 days",
    )
    line = (
        "only these: a format, the name of a data set, remote (the fetched files) or kernels (compiled ones); default: "
        "all, and to clear all but kernels"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=line)
    parser.add_argument("--clear", action="store_true", help="remove them; what a process has open stays")
    line = "only what was not used for so many days"
    parser.add_argument("--unused", type=days, metavar="DAYS", help=line)
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    add_json(parser)


def _add_completion(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "completing:run_completion",
        "completion",
        "print what lets a shell complete verbs, options, paths and names of features",
        '  eval "$(stepwell completion bash)"     in ~/.bashrc\n'
        '  eval "$(stepwell completion zsh)"      in ~/.zshrc\n'
        "  stepwell completion fish | source      in ~/.config/fish/config.fish",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _add_action(actions: Verbs[Parser], name: str, line: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
    parser.add_argument("path", type=directory, metavar="PATH", help="directory of a LeRobot dataset")
    parser.add_argument("--out", type=Path, metavar="DST", help="of a new dataset; default: in place")
    return parser


def _add_executor(parser: argparse.ArgumentParser) -> None:
    line = "where the work is done: ray, or ray:ADDRESS of a cluster; default: processes of this machine"
    parser.add_argument("--executor", metavar="RAY[:ADDRESS]", help=line)


def _add_bench(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
        verbs,
        "benching:run_bench",
        "bench",
        "stream windows of a store and say how fast, beside memcpy",
        "  stepwell bench pusht.well\n"
        "  stepwell bench pusht.well --field observation.image=-1,0 --field action=0:16 --batch-size 64\n"
        "  stepwell bench pusht.well --order sequential --threads 2 --seconds 10 --json\n"
        "  stepwell bench pusht.well --order pooled --no-page-cache",
    )
    add_path_and_json(parser)
    line = (
        "a feature and its offsets in steps: -1,0 or 0:16 or 0:16:2; default: every feature, images -1,0, others 0:16"
    )
    add_repeated(parser, "--field", "NAME[=OFFSETS]", line, type=field_and_offsets)
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help="default: 64")
    parser.add_argument("--order", choices=("random", "sequential", "pooled"), default="random", help="default: random")
    parser.add_argument(
        "--no-page-cache",
        action="store_true",
        help="read past the system's page cache, as for a store much larger than memory",
    )
    parser.add_argument("--threads", type=threads, metavar="N", help="default: chosen by the loader")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="stop after so long, default: 5")


def _add_serve(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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
    add_repeated(parser, "--table", "NAME[:OPTION=VALUE,...]", line)
    parser.add_argument("--address", default="127.0.0.1:7070", metavar="HOST:PORT", help="default: 127.0.0.1:7070")
    _add_token(parser)
    for name, what in (("certificate", "certificate of the server, PEM"), ("key", "its private key, PEM")):
        parser.add_argument(f"--{name}", metavar="FILE", help=what)
    parser.add_argument("--authority", metavar="FILE", help="PEM: clients need certificates that lead to these")
    parser.add_argument("--insecure", action="store_true", help="let other machines connect without a token or TLS")
    parser.add_argument("--checkpoints", metavar="DIR", help="where clients may have checkpoints made")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics for Prometheus")


def _add_top(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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
    add_json(parser)


def _add_view(verbs: Verbs[Parser]) -> None:
    parser = add_verb(
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
    add_with(parser, "an option of the address's reader, such as split=val")
    add_import_and_trust(parser)
    _add_token(parser)
    parser.add_argument("--authority", metavar="FILE", help="PEM: the server's certificate leads to these")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="to listen on, default: 127.0.0.1")
    line = "0: one that is free; default: 7080, or the next one that is"
    parser.add_argument("--port", type=port, metavar="N", help=line)
    parser.add_argument("--edit", action="store_true", help="let the page mark episodes and save selections")
    parser.add_argument("--once", action="store_true", help="print the address and leave")


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token-file", metavar="FILE", help="holds the text that clients send")


def _add_warm(verbs: Verbs[Parser]) -> None:
    add_verb(
        verbs,
        "benching:run_warm",
        "warm",
        "compile all kernels now, so that no run waits for them",
        "  stepwell warm",
    )


def _add_env(verbs: Verbs[Parser]) -> None:
    add_json(
        add_verb(
            verbs,
            "benching:run_env",
            "env",
            "print versions, cores, memory and extras, for a bug report",
            "  stepwell env",
        )
    )
