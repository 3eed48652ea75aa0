"""Where a dataset comes from: a directory, or the Hugging Face hub, of which only the needed files are fetched.

::

    Repository                           Snapshot                                   a directory of files
      repo_id, revision, token  --open-->  root, revision; meta/ is there --fetch-->  in the hub's cache
                                                                          --fetch_into-->  anywhere, for a while
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import unquote

from stepwell.errors import DatasetNotFoundError, DiskFullError, FormatError, MissingDependencyError, StepwellError
from stepwell.files.addresses import path_of_file
from stepwell.formats.registry import parse_address
from stepwell.lerobot.info import VERSIONS
from stepwell.lerobot.meta_files import said
from stepwell.lerobot.metadata import Metadata
from stepwell.progress import make_bar

__all__ = [
    "Repository",
    "Snapshot",
    "Source",
    "endpoint",
    "explained",
    "explaining",
    "import_hub",
    "is_refusal",
    "locate",
    "locate_meta",
    "needed_files",
    "parse_episodes",
    "parse_source",
    "raised_by_hub",
]

# seconds for the answer to a question; files have time-outs of their own for each part of them
ANSWER_SECONDS = 10.0
WORKERS = 8
DEFAULT_BRANCH = "main"


def locate(
    source: str | os.PathLike[str],
    *,
    episodes: Iterable[int | slice] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    download_videos: bool = True,
    ignore: Collection[str] = (),
    progress: bool | None = None,
) -> Metadata:
    """Return the metadata of a dataset whose files are on this machine, after fetching those that are not.

    Of the hub, ``meta/`` is fetched first, and then only the files that hold the chosen episodes. They lie in the cache
    of ``huggingface_hub``, which other programs share; what is there is not fetched again.

    Args:
        source: a directory, ``"owner/name"`` of the hub, or an address, see `stepwell.lerobot.hub.parse_source`.
        episodes: numbers and slices; default those of the address, else all.
        revision: tag, branch or commit on the hub; default that of the address, else the tag of the newest version of
            the format that there is ("v3.0", "v2.1", "v2.0"), else "main". Of no meaning for a directory.
        token: of the hub; None: ``HF_TOKEN`` or the stored one, False: none.
        cache_dir: of ``huggingface_hub``; default as it has it (``HF_HOME``).
        local_files_only: fetch nothing; so does ``HF_HUB_OFFLINE=1``.
        download_videos: fetch mp4 files.
        ignore: names of features to leave out; their videos are not fetched.
        progress: draw a bar; None: on a terminal.

    Returns:
        The metadata. For a directory, whether all files are there is not looked at.

    Raises:
        DatasetNotFoundError: no such directory, repository or revision, or no access to it; or the hub cannot be
            reached and the files are not in the cache.
        FormatError: the dataset is not as its format says.
        EpisodeNotFoundError: a selected episode is not there.
        MissingDependencyError: huggingface_hub or pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_lerobot
        >>> locate(tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={}), episodes=[slice(1, None)])
        <Metadata tiny  v3.0  10 fps  2 of 3 episodes>

    Notes:
        Several processes may fetch the same files at once. Without the network, or when the hub is down, what is in the
        cache is used, if it is all there.
    """
    metadata, snapshot = locate_meta(
        source,
        episodes=episodes,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        ignore=ignore,
    )
    if snapshot is not None:
        snapshot.fetch(needed_files(metadata, videos=download_videos), progress=progress)
    return metadata


def locate_meta(
    source: str | os.PathLike[str],
    *,
    episodes: Iterable[int | slice] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    ignore: Collection[str] = (),
) -> tuple[Metadata, Snapshot | None]:
    """Return the metadata of a dataset, for which only ``meta/`` is fetched, and its snapshot on the hub, if any."""
    found = parse_source(source)
    chosen = found.episodes if episodes is None else episodes
    if found.path is not None:
        return Metadata.load(found.path, episodes=chosen, ignore=ignore), None
    wanted = found.revision if revision is None else revision
    snapshot = Repository(found.repo_id or "", wanted, token, cache_dir, local_files_only).open()
    metadata = Metadata.load(
        snapshot.root, episodes=chosen, repo_id=found.repo_id, revision=snapshot.revision, ignore=ignore
    )
    return metadata, snapshot


def fetch_whole(repo_id: str, root: Path, *, revision: str | None = None, token: str | bool | None = None) -> None:
    """Fetch all files of a dataset of the hub into a directory of its own, which appears when they are all there.

    Raises:
        DatasetNotFoundError: no such dataset.
        OSError: something is at the root.
    """
    snapshot = Repository(repo_id, revision, token).open()
    # what a broken call left there is gone on with
    waiting = root.absolute().with_name(f".{root.name}.fetching")
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(f"{root} is no dataset, and not empty. Choose another root to fetch {repo_id} to.")
    with explaining(snapshot.repository.name), _without_bars():
        import_hub().snapshot_download(
            **snapshot.repository.place,
            revision=snapshot.commit,
            endpoint=endpoint(),
            token=token,
            local_dir=waiting,
            etag_timeout=ANSWER_SECONDS,
            max_workers=WORKERS,
        )
    waiting.replace(root)


def needed_files(metadata: Metadata, *, videos: bool = True) -> list[str]:
    """Return the names, relative to the root, of the files of the selected episodes."""
    paths = metadata.data_files(metadata.selected)
    if videos:
        paths += metadata.video_files(metadata.selected)
    return [path.relative_to(metadata.root).as_posix() for path in paths]


@dataclass(frozen=True, slots=True)
class Repository:
    """A dataset repository of the hub. ``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and ``HF_HOME`` are obeyed."""

    repo_id: str
    # branch, tag or commit; None: the tag of the newest version of the format that is read here, else main
    revision: str | None = None
    # None: HF_TOKEN or the stored one, False: none
    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False

    def open(self) -> Snapshot:
        """Return the snapshot of the revision in the cache, with the files of ``meta/``, fetched if need be."""
        offline, revisions = self._revisions()
        for revision in revisions:
            try:
                root = self._fetch_meta(revision, is_offline=offline is not None)
            except DatasetNotFoundError:
                if offline is None:
                    raise
            else:
                return Snapshot(self, Path(root), revision, offline)
        where = self.cache_dir or import_hub().constants.HF_HUB_CACHE
        is_here = Path(self.repo_id).is_dir()
        here = f" The directory of this name is lerobot://./{self.repo_id}." if is_here else ""
        raise DatasetNotFoundError(
            f"{self.name} is not in the cache {where}, and {offline}. Fetch it once with the network there, or give "
            f"cache_dir.{here}"
        )

    @property
    def name(self) -> str:
        """The repository and its revision, for messages."""
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"

    @property
    def place(self) -> dict[str, Any]:
        """The arguments that every function of ``huggingface_hub`` takes."""
        return {"repo_id": self.repo_id, "repo_type": "dataset"}

    def _revisions(self) -> tuple[str | None, Sequence[str]]:
        """Return the reason not to use the network, or None, and the revisions to try in turn."""
        found = [self.revision] if self.revision is not None else [*VERSIONS, DEFAULT_BRANCH]
        if self.local_files_only:
            return "local_files_only=True forbids to ask the hub", found
        if import_hub().constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE forbids to ask the hub", found
        try:
            return None, [self._found_revision()]
        except raised_by_hub() as error:
            if is_refusal(error):
                raise explained(error, self.name, endpoint()) from error
            return f"the hub at {endpoint()} cannot be reached ({said(error)})", found

    def _found_revision(self) -> str:
        """Return the revision, or the default one, after a request to the hub whether it is there."""
        api = import_hub().HfApi(endpoint=endpoint(), token=self.token)
        # the only request with a time-out: first
        api.repo_info(**self.place, revision=self.revision, timeout=ANSWER_SECONDS)
        if self.revision is not None:
            return self.revision
        tags = {tag.name for tag in api.list_repo_refs(**self.place).tags}
        return next((version for version in VERSIONS if version in tags), DEFAULT_BRANCH)

    def _fetch_meta(self, revision: str, *, is_offline: bool) -> str:
        with explaining(self.name), _without_bars():
            return str(
                import_hub().snapshot_download(
                    **self.place,
                    revision=revision,
                    endpoint=endpoint(),
                    token=self.token,
                    cache_dir=self.cache_dir,
                    local_files_only=is_offline,
                    allow_patterns=["meta/*"],
                    etag_timeout=ANSWER_SECONDS,
                    max_workers=WORKERS,
                )
            )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, in the hub's cache as far as it was fetched."""

    repository: Repository
    root: Path
    revision: str
    # the reason why nothing can be fetched
    offline: str | None

    @property
    def commit(self) -> str:
        """The hash of the commit."""
        return self.root.name

    def fetch(self, names: Iterable[str], *, progress: bool | None = None) -> None:
        """Fetch the files that are not in the cache yet, a few at a time."""
        wanted = list(names)
        missing = [name for name in wanted if not (self.root / name).exists()]
        if missing and self.offline:
            raise DatasetNotFoundError(
                f"{len(missing)} of {len(wanted)} files of {self.repository.name} are not in the cache, {missing[0]} "
                f"among them, and {self.offline}. Choose other episodes, or fetch them once with the network there."
            )
        if not missing:
            return
        with (
            make_bar(len(missing), "files", f"fetching {self.repository.repo_id}", wanted=progress) as bar,
            _without_bars(),
            ThreadPoolExecutor(min(WORKERS, len(missing)), "stepwell-hub") as pool,
        ):
            jobs = [pool.submit(self._download, name) for name in missing]
            try:
                for job in as_completed(jobs):
                    job.result()
                    bar.update()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def fetch_into(self, name: str, directory: Path) -> None:
        """Put one file into a directory, under its name: a link if the cache has it, a copy of its own otherwise."""
        cached = self.root / name
        if cached.exists():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).symlink_to(cached.resolve())
        elif self.offline:
            raise DatasetNotFoundError(f"{name} of {self.repository.name} is not in the cache, and {self.offline}.")
        else:
            with _without_bars():
                self._download(name, local_dir=directory)

    def _download(self, name: str, local_dir: Path | None = None) -> None:
        with explaining(f"{name} of {self.repository.name}"):
            import_hub().hf_hub_download(
                **self.repository.place,
                filename=name,
                revision=self.commit,
                endpoint=endpoint(),
                token=self.repository.token,
                cache_dir=self.repository.cache_dir,
                local_dir=local_dir,
                etag_timeout=ANSWER_SECONDS,
            )


def endpoint() -> str:
    """Return the address of the hub: ``HF_ENDPOINT`` as it is now, not as it was when huggingface_hub was imported."""
    return (os.environ.get("HF_ENDPOINT") or import_hub().constants.ENDPOINT).rstrip("/")


def import_hub() -> ModuleType:
    """Return the module huggingface_hub."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingDependencyError.of("huggingface_hub", "lerobot") from error
    module: ModuleType = huggingface_hub
    return module


@contextmanager
def explaining(what: str) -> Iterator[None]:
    """Raise stepwell's errors for those of ``huggingface_hub`` in a block that fetches something."""
    try:
        yield
    except raised_by_hub() as error:
        raise explained(error, what, endpoint()) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep huggingface_hub from drawing a bar a file, also where standard error is no terminal."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    # set in the environment: not changed here
    if are_progress_bars_disabled() or import_hub().constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def raised_by_hub() -> tuple[type[Exception], ...]:
    """Return the errors of ``huggingface_hub`` that no mistake in a program causes."""
    from huggingface_hub.utils import EntryNotFoundError, HfHubHTTPError, HFValidationError

    # its base is the root of the errors of the HTTP library, which is another one in every major version
    return (OSError, EntryNotFoundError, HFValidationError, *HfHubHTTPError.__bases__)


def is_refusal(error: Exception) -> bool:
    """Return whether the hub has answered with an error that another try will not change."""
    from huggingface_hub.utils import HFValidationError, LocalTokenNotFoundError

    return isinstance(error, HFValidationError | LocalTokenNotFoundError) or status_of(error) in (400, 401, 403, 404)


def status_of(error: Exception) -> int | None:
    """Return the status of the hub's answer, None without an answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def explained(error: Exception, what: str, endpoint: str) -> StepwellError:
    """Return stepwell's error for an error of ``huggingface_hub``."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DiskFullError(f"no space left to fetch {what}: {error}. Choose fewer episodes, or another cache_dir.")
    cause = _refusal(error, endpoint)
    if cause is None:
        return DatasetNotFoundError(f"{what} cannot be fetched from {endpoint}: {said(error)}. Try again later.")
    kind, words = cause
    return kind(f"{what} {words}")


def _refusal(error: Exception, endpoint: str) -> tuple[type[StepwellError], str] | None:
    """Return the class and the rest of a sentence where the hub refused a request; None for other errors."""
    from huggingface_hub import utils

    login = "give token=, set HF_TOKEN, or log in with huggingface_hub's command"
    # the first that fits: some of these are others, too
    words: list[tuple[type[Exception], str | None]] = [
        (utils.LocalEntryNotFoundError, None),
        (utils.GatedRepoError, f"is gated. Ask for access on its page at {endpoint}, and {login}."),
        (utils.RevisionNotFoundError, f"does not exist at {endpoint}: no such tag, branch or commit. Leave it out."),
        (
            utils.RepositoryNotFoundError,
            f"is not at {endpoint}, or is private. Check the name, or {login}. For a directory write ./ in front.",
        ),
        (utils.HFValidationError, f"cannot be a repository: {error}"),
        (utils.LocalTokenNotFoundError, f"needs a token, and none is stored: {login}."),
        (utils.EntryNotFoundError, f"is not there at {endpoint}, though metadata names it. Choose other episodes."),
    ]
    for raised, sentence in words:
        if isinstance(error, raised):
            kind = FormatError if raised is utils.EntryNotFoundError else DatasetNotFoundError
            return None if sentence is None else (kind, sentence)
    if status_of(error) in (401, 403):
        return DatasetNotFoundError, f"may not be read (status {status_of(error)} from {endpoint}): {login}."
    return None


READER, EPISODES = "lerobot", "episodes"
SCHEME = f"{READER}://"
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
EPISODE = re.compile(r"\d{1,12}", re.ASCII)
SLICE = re.compile(r"(-?\d{1,12})?:(-?\d{1,12})?", re.ASCII)
ALLOWED = (
    'Allowed: a directory, "owner/name" of the hub, or lerobot:// and an absolute path, ./ and a relative one, '
    "or owner/name@revision, each with ?episodes=0:10,15 if you like."
)


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a dataset."""

    kind: Literal["directory", "hub"]  # "directory" or "hub"
    path: Path | None = None  # the directory; None for the hub
    repo_id: str | None = None  # owner and name on the hub; None for a directory
    revision: str | None = None  # tag, branch or commit on the hub; None for the default one
    episodes: tuple[int | slice, ...] | None = None  # numbers and slices; None for all


def parse_source(source: str | os.PathLike[str]) -> Source:
    """Return what an address means.

    Example:
        >>> parse_source("lerobot://lerobot/pusht@v3.0?episodes=0:10,15")
        Source(kind='hub', path=None, repo_id='lerobot/pusht', revision='v3.0', episodes=(slice(0, 10, None), 15))
    """
    text = path_of_file(os.fspath(source))
    if text.startswith(SCHEME):
        return _parse_address(text)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return Source("directory", path=path)
    if isinstance(source, str) and REPO_ID.fullmatch(text):
        return Source("hub", repo_id=text)
    raise DatasetNotFoundError(f"no directory {text!r}. {ALLOWED}")


def _parse_address(text: str) -> Source:
    if text == SCHEME:
        raise DatasetNotFoundError(f"{text!r} names no dataset. {ALLOWED}")
    address = parse_address(text, (READER,))
    others = address.options.keys() - {EPISODES}
    if others:
        raise FormatError(f"{text!r} has the part {min(others)!r}. {ALLOWED}")
    episodes = parse_episodes(address.options[EPISODES]) if address.options else None
    place, is_file = address.source, text[len(SCHEME) :].lower().startswith("file:")
    if is_file or place.startswith(("/", "./", "../")) or place in (".", ".."):
        return Source("directory", path=Path(place if is_file else unquote(place)), episodes=episodes)
    repo_id, has_revision, revision = place.partition("@")
    if not REPO_ID.fullmatch(repo_id) or (has_revision and not revision):
        raise DatasetNotFoundError(f"{text!r} names no dataset. {ALLOWED}")
    return Source("hub", repo_id=repo_id, revision=unquote(revision) or None, episodes=episodes)


def parse_episodes(text: str) -> tuple[int | slice, ...]:
    """Return the numbers and slices that a list such as ``"0:10,15,-5:"`` says.

    Example:
        >>> parse_episodes("3,8:")
        (3, slice(8, None, None))
    """
    entries: list[int | slice] = []
    for part in text.split(","):
        bounds = SLICE.fullmatch(part.strip())
        if bounds:
            entries.append(slice(*(None if bound is None else int(bound) for bound in bounds.groups())))
        elif EPISODE.fullmatch(part.strip()):
            entries.append(int(part))
        else:
            raise FormatError(
                f"episodes {text!r} has the part {part!r}. "
                "Allowed: numbers and ranges, e.g. 0:10,15,-5: (the last is -1:)"
            )
    return tuple(entries)
