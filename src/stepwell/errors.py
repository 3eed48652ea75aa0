"""The exception tree of stepwell.

::

    StepwellError
    ├── SchemaError              (ValueError)         a feature or schema that cannot be
    ├── FeatureNotFoundError     (KeyError)           no such feature in this store
    ├── StepError                (ValueError)         a step that does not fit the schema, refused before it is written
    ├── EpisodeNotFoundError     (KeyError)           no such episode
    ├── StoreNotFoundError       (FileNotFoundError)  no store at this path
    ├── DatasetNotFoundError     (FileNotFoundError)  no data set of another system at this path or address
    ├── FormatError              (ValueError)         a data set of another system that is not as its format says
    ├── SegmentGoneError         (FileNotFoundError)  a segment that was evicted or compacted since the last refresh
    ├── StoreExistsError         (FileExistsError)    a store is there already
    ├── StoreVersionError        (ValueError)         written by a newer stepwell
    ├── StoreBusyError           (RuntimeError)       another process is writing what must stand still
    ├── ReadOnlyError            (PermissionError)    a store that was opened for reading only, or may not be changed
    ├── StoreAccessError         (PermissionError)    a file of a store that may not be read
    ├── StoreFileError           (OSError)            a file of a store that the system refuses: too many are open
    ├── DiskFullError            (OSError)            no space; what was committed stays readable
    ├── WriterClosedError        (ValueError)         the writer was closed
    ├── CorruptSegmentError      (ValueError)         bytes on disk that are not what was written
    ├── EncodeError              (RuntimeError)       a step that its codec could not encode
    ├── DecodeError              (ValueError)         an encoded row that its codec refuses
    ├── UntrustedFileError       (PermissionError)    a file that a store or data set leads to, and nobody allowed
    ├── WindowError              (ValueError)         a field that does not fit the store or the episodes
    ├── OrderError               (ValueError)         an order that cannot be
    ├── StateError               (ValueError)         a loader state of another store or format
    ├── LoaderError              (RuntimeError)       a batch that could not be built: names store, episode and step
    ├── TableError               (ValueError)         a replay table, item or priority that cannot be
    ├── RateLimitError           (TimeoutError)       a rate limiter let nothing through in time: says what it waits for
    ├── ServiceError             (ConnectionError)    a server of tables that is away, or a message that none may send
    ├── WorkerError              (RuntimeError)       a worker of a parallel recording that raised: names the item
    └── MissingDependencyError   (ImportError)        an extra that is not installed: says the pip line

Two warnings, both UserWarnings: `LeftOutWarning`, some of what a source holds is left out; `SharedFileSystemWarning`, a
store lies where several machines may write, and what that means.
"""

from collections import abc

__all__ = [
    "CorruptSegmentError",
    "DatasetNotFoundError",
    "DecodeError",
    "DiskFullError",
    "EncodeError",
    "EpisodeNotFoundError",
    "FeatureNotFoundError",
    "FormatError",
    "LeftOutWarning",
    "LoaderError",
    "MissingDependencyError",
    "OrderError",
    "RateLimitError",
    "ReadOnlyError",
    "SchemaError",
    "SegmentGoneError",
    "ServiceError",
    "SharedFileSystemWarning",
    "StateError",
    "StepError",
    "StepwellError",
    "StoreAccessError",
    "StoreBusyError",
    "StoreExistsError",
    "StoreFileError",
    "StoreNotFoundError",
    "StoreVersionError",
    "TableError",
    "UntrustedFileError",
    "WindowError",
    "WorkerError",
    "WriterClosedError",
]


class StepwellError(Exception):
    """The root of every error that stepwell raises on purpose."""

    def __str__(self) -> str:
        # KeyError prints its message quoted; an error for people does not.
        return str(self.args[0]) if self.args else ""


class SchemaError(StepwellError, ValueError):
    """A feature or a schema that cannot be."""


class FeatureNotFoundError(StepwellError, KeyError):
    """A feature that the store does not have."""


class StepError(StepwellError, ValueError):
    """A step that does not fit the schema; nothing of it was written."""


class EpisodeNotFoundError(StepwellError, KeyError):
    """An episode that the store does not have."""


class StoreNotFoundError(StepwellError, FileNotFoundError):
    """No store at this path."""


class DatasetNotFoundError(StepwellError, FileNotFoundError):
    """No data set of another system at this path or address; the message says where it was looked for."""


class FormatError(StepwellError, ValueError):
    """A data set of another system is not as its format says; the message names the file."""


class SegmentGoneError(StepwellError, FileNotFoundError):
    """A segment is not there any more: a ring evicted it, or the store was compacted. Refresh, and go on."""


class StoreExistsError(StepwellError, FileExistsError):
    """A store, or something else, is already at this path."""


class StoreVersionError(StepwellError, ValueError):
    """A store of a format version that this stepwell does not know."""


class StoreBusyError(StepwellError, RuntimeError):
    """Another process is writing to what must stand still for this operation."""


class ReadOnlyError(StepwellError, PermissionError):
    """A change was asked of a store that was opened for reading only, or that this user may not change."""


class StoreAccessError(StepwellError, PermissionError):
    """A file of a store that this user may not read."""


class StoreFileError(StepwellError, OSError):
    """The system does not open, read or write a file of a store: too many open files, or an error of the disk."""


class DiskFullError(StepwellError, OSError):
    """There was no space left; everything committed before stays readable."""


class WriterClosedError(StepwellError, ValueError):
    """The writer was closed, or failed, before this call."""


class CorruptSegmentError(StepwellError, ValueError):
    """Bytes of a segment are not the bytes that were written."""


class EncodeError(StepwellError, RuntimeError):
    """A step that its codec could not encode; the message names the feature, the cause is chained."""


class DecodeError(StepwellError, ValueError):
    """An encoded row that its codec refuses."""


class UntrustedFileError(StepwellError, PermissionError):
    """A file outside of a store or data set that it leads to, which was not read; says how to allow it."""


class WindowError(StepwellError, ValueError):
    """A field that does not fit the store or its episodes."""


class OrderError(StepwellError, ValueError):
    """An order that cannot be."""


class StateError(StepwellError, ValueError):
    """A loader state that belongs to another store, format or configuration."""


class LoaderError(StepwellError, RuntimeError):
    """A batch could not be built; the cause is chained, the message names store, episode and step."""


class TableError(StepwellError, ValueError):
    """A table, an item or a priority that cannot be; nothing of the call was done."""


class RateLimitError(StepwellError, TimeoutError):
    """A rate limiter let nothing through before the time-out; the message says what it waits for."""


class ServiceError(StepwellError, ConnectionError):
    """A server of tables cannot be reached, or one side sent what the protocol does not have."""


class WorkerError(StepwellError, RuntimeError):
    """A worker process failed; the message names the item and carries the worker's traceback."""


class MissingDependencyError(StepwellError, ImportError):
    """An optional package is missing; the message is the pip line to type."""

    @classmethod
    def of(cls, package: str, extra: str) -> "MissingDependencyError":
        """Return the error for ``package``, which comes with ``stepwell[extra]``."""
        return cls(f"{package} is not installed. Type: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return what to type for an extra, as stepwell itself was installed (PEP 610, ``direct_url.json``).

    Args:
        extra: "image", or several, "image,video".

    Returns:
        ``pip install -e '/path[image]'`` of an editable checkout, ``pip install '/path[image]'`` of another one,
        ``pip install 'stepwell[image] @ git+https://...'`` of a repository; else ``pip install 'stepwell[image]'``.
    """
    from importlib.metadata import PackageNotFoundError, distribution
    from json import JSONDecoder
    from shlex import quote
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    plain = f"pip install {quote(f'stepwell[{extra}]')}"
    try:
        # json_text stands above the errors that it raises
        record = JSONDecoder().decode(distribution("stepwell").read_text("direct_url.json") or "")
        url, folder, source = str(record["url"]), record.get("dir_info"), record.get("vcs_info")
        if source is not None:
            where = f"{source['vcs']}+{url}@{source.get('requested_revision') or source['commit_id']}"
            return f"pip install {quote(f'stepwell[{extra}] @ {where}')}"
        if folder is None or urlsplit(url).scheme != "file":
            return plain
        is_editable = folder.get("editable") is True
    except (PackageNotFoundError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # a wheel of an index, or a record that is none
        return plain
    return f"pip install {'-e ' if is_editable else ''}{quote(f'{url2pathname(urlsplit(url).path)}[{extra}]')}"


class LeftOutWarning(UserWarning):
    """A reader leaves out some of what its source holds, or the source tells of more; what is read is right."""


class SharedFileSystemWarning(UserWarning):
    """A store is written on a file system that other machines may mount; said once a file system and process."""


def did_you_mean(name: str, known: abc.Iterable[str]) -> str:
    """Return a sentence that names what is spelled nearly like a name, with a space before it; "" where nothing is.

    Example:
        >>> did_you_mean("acton", ["action", "state"]), did_you_mean("x", ["action"])
        (" Did you mean 'action'?", '')
    """
    # only errors need it
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""
