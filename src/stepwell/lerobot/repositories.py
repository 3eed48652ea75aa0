"""Dataset repositories of the Hugging Face hub: which revision, and files of it in the hub's cache or elsewhere.

::

    Repository                           Snapshot                                   a directory of files
      repo_id, revision, token  --open-->  root, revision; meta/ is there --fetch-->  in the hub's cache
                                                                          --fetch_into-->  anywhere, for a while
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell.errors import DatasetNotFoundError, MissingDependencyError
from stepwell.lerobot.hub_errors import explained, is_refusal, raised_by_hub
from stepwell.lerobot.info import VERSIONS
from stepwell.lerobot.meta_files import said
from stepwell.progress import make_bar

__all__ = ["Repository", "Snapshot"]

# seconds for the answer to a question; files have time-outs of their own for each part of them
ANSWER_SECONDS = 10.0
WORKERS = 8
DEFAULT_BRANCH = "main"


@dataclass(frozen=True, slots=True)
class Repository:
    """A dataset repository of the hub.

    Args:
        repo_id: owner and name.
        revision: tag, branch or commit; None: the tag of the newest version of the format that we read, else main.
        token: of the hub; None: ``HF_TOKEN`` or the stored one, False: none.
        cache_dir: default as ``huggingface_hub`` has it.
        local_files_only: ask nobody, use what is in the cache.

    Notes:
        An immutable value, picklable. ``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and ``HF_HOME`` are obeyed.
    """

    repo_id: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False

    def open(self) -> Snapshot:
        """Return the snapshot of the revision in the cache, with the files of ``meta/``, fetched if they are not there.

        Raises:
            DatasetNotFoundError: there is no such repository or revision, it may not be read, or the hub cannot be
                reached and the cache does not have it.
            MissingDependencyError: huggingface_hub is not installed.
        """
        offline, revisions = self._revisions()
        for revision in revisions:
            try:
                root = self._fetch_meta(revision, is_offline=offline is not None)
            except DatasetNotFoundError:
                if offline is None:
                    raise
            else:
                return Snapshot(self, Path(root), revision, offline)
        where = self.cache_dir or _hub().constants.HF_HUB_CACHE
        is_here = Path(self.repo_id).is_dir()
        here = f" The directory of this name is lerobot://./{self.repo_id}." if is_here else ""
        raise DatasetNotFoundError(
            f"{self.name} is not in the cache {where}, and {offline}. Fetch it once with the network there, or give "
            f"cache_dir.{here}"
        )

    @property
    def name(self) -> str:
        """The repository and what was asked for, for messages."""
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"

    @property
    def place(self) -> dict[str, Any]:
        """What every function of ``huggingface_hub`` is told."""
        return {"repo_id": self.repo_id, "repo_type": "dataset"}

    def _revisions(self) -> tuple[str | None, Sequence[str]]:
        """Return why the hub is not to be asked, None if it is, and the revisions to try, the first one first."""
        found = [self.revision] if self.revision is not None else [*VERSIONS, DEFAULT_BRANCH]
        if self.local_files_only:
            return "local_files_only=True forbids to ask the hub", found
        if _hub().constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE forbids to ask the hub", found
        try:
            return None, [self._asked()]
        except raised_by_hub() as error:
            if is_refusal(error):
                raise explained(error, self.name, endpoint()) from error
            return f"the hub at {endpoint()} cannot be reached ({said(error)})", found

    def _asked(self) -> str:
        """Return the revision that was asked for, or the default one, after asking the hub whether it is there."""
        api = _hub().HfApi(endpoint=endpoint(), token=self.token)
        # of all questions only this one takes a time-out, so that it comes first
        api.repo_info(**self.place, revision=self.revision, timeout=ANSWER_SECONDS)
        if self.revision is not None:
            return self.revision
        tags = {tag.name for tag in api.list_repo_refs(**self.place).tags}
        return next((version for version in VERSIONS if version in tags), DEFAULT_BRANCH)

    def _fetch_meta(self, revision: str, *, is_offline: bool) -> str:
        with _explaining(self.name), _without_bars():
            return str(
                _hub().snapshot_download(
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
    """One commit of a repository, in the hub's cache as far as it was fetched.

    Args:
        repository: that it is of.
        root: its directory in the cache.
        revision: tag, branch or commit that was found.
        offline: why nothing can be fetched; None if it can.

    Notes:
        An immutable value, picklable: other processes may fetch as well.
    """

    repository: Repository
    root: Path
    revision: str
    offline: str | None

    @property
    def commit(self) -> str:
        """The hash of the commit."""
        return self.root.name

    def fetch(self, names: Iterable[str], *, progress: bool | None = None) -> None:
        """Fetch the files that are not in the cache yet, a few at a time.

        Args:
            names: of files, relative to the root.
            progress: draw a bar; None: on a terminal.

        Raises:
            DatasetNotFoundError: the hub cannot be reached, or nothing may be fetched.
            FormatError: the repository does not have a file.
            DiskFullError: no space left.
        """
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
        """Put one file into a directory, under its name: a link if the cache has it, a copy of its own otherwise.

        Args:
            name: of the file, relative to the root.
            directory: that the name is relative to there; the file appears whole or not at all.

        Raises:
            DatasetNotFoundError: the hub cannot be reached, or nothing may be fetched.
            FormatError: the repository does not have the file.
            DiskFullError: no space left.
        """
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
        with _explaining(f"{name} of {self.repository.name}"):
            _hub().hf_hub_download(
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
    return (os.environ.get("HF_ENDPOINT") or _hub().constants.ENDPOINT).rstrip("/")


def _hub() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ImportError as error:
        raise MissingDependencyError.of("huggingface_hub", "lerobot") from error
    module: ModuleType = huggingface_hub
    return module


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    try:
        yield
    except raised_by_hub() as error:
        raise explained(error, what, endpoint()) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep huggingface_hub from drawing a bar a file, also where standard error is no terminal."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    # set in the environment, it is not ours to change
    if are_progress_bars_disabled() or _hub().constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
