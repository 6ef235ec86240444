"""Where input bytes come from: local files, http(s)://, s3://, gs://, hdfs:// and hf:// (the Hugging Face hub).

All through fsspec: HTTP and the hub by their own file systems, S3, GCS and HDFS by Arrow's, which are in the pyarrow
wheel. Credentials come from where each service's tools look for them: AWS_* and ~/.aws (AWS_ENDPOINT_URL for another
S3), GOOGLE_APPLICATION_CREDENTIALS, HADOOP_CONF_DIR, HF_TOKEN.

Remote file systems hold threads, which a fork would break: they are only opened in worker processes (workers.py).
"""

import glob
import os
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from muster_prepare.errors import InputError

SCHEMES = ("http", "https", "s3", "gs", "gcs", "hdfs", "hf")
TRIES = 4  # of a remote read; 1, 2, 4 s apart
CHUNK_BYTES = 1 << 20  # of a local read; a remote one is four times as long

_opened: dict[tuple, object] = {}  # file systems of this process


@dataclass(frozen=True)
class Found:
    path: str  # what the user would call it: a path, or a URL
    size: int  # -1: the server doesn't say
    stamp: str  # changes when the content does, as far as the storage tells
    seekable: bool


def is_remote(path: str) -> bool:
    return "://" in path


def scheme_problem(path: str) -> str | None:
    scheme = path.split("://", 1)[0]
    if scheme == "file":
        return f"{path}: give the plain path"
    return (
        None
        if scheme in SCHEMES
        else f"{path}: no such storage: {scheme}://; there are {', '.join(SCHEMES)}, and paths"
    )


def find(pattern: str) -> list[Found]:
    """The files of a path, folder or glob, sorted; hidden ones left out. Raises InputError with one problem."""
    if not is_remote(pattern):
        return _find_local(pattern)
    if problem := scheme_problem(pattern):
        raise InputError(problem)
    return _asked(pattern, lambda: _find_remote(pattern))


class Reader:
    """Bytes of one file from `begin` on. A remote read that fails is tried again where it stopped."""

    def __init__(self, found_path: str, size: int, begin: int, seekable: bool):
        self.path = found_path
        self.position = begin
        self._size, self._seekable, self._file = size, seekable, None
        if not is_remote(found_path):
            self._file = open(found_path, "rb")
            if os.fstat(self._file.fileno()).st_size != size:
                self.close()
                raise InputError(f"{found_path}: changed while it was read")
            self._file.seek(begin)

    def read(self, count: int = -1) -> bytes:
        """At most `count` bytes; b"" at the end."""
        if not is_remote(self.path):
            data = self._file.read(count)
        else:
            data = _asked(self.path, lambda: self._read_remote(count))
        self.position += len(data)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _read_remote(self, count: int) -> bytes:
        if self._seekable and self.position >= self._size:
            return b""
        try:
            if self._file is None:
                self._file = open_remote(self.path, self._seekable)
                if self._seekable:
                    self._file.seek(self.position)
                elif self.position:  # a stream can't be taken up in its middle
                    left = self.position
                    while left and (skipped := self._file.read(min(left, CHUNK_BYTES))):
                        left -= len(skipped)
            return self._file.read(count)
        except Exception:
            self._file = None
            raise


def open_remote(url: str, seekable: bool = True):
    """A file in binary mode; not seekable (http without ranges): a stream."""
    system, path = _system(url)
    if _is_http(url):
        return system.open(path, "rb", block_size=4 * CHUNK_BYTES if seekable else 0)
    return system.open(path, "rb")


def _find_local(pattern: str) -> list[Found]:
    paths = _expand(pattern)
    if not paths:
        raise InputError(
            f"{pattern}: "
            + (
                "no file matches"
                if glob.has_magic(pattern)
                else "an empty folder"
                if os.path.isdir(pattern)
                else "no such file"
            )
        )
    found, problems = [], []
    for path in paths:
        try:
            status = os.stat(path)
            with open(path, "rb"):
                pass
            found.append(Found(path, status.st_size, str(status.st_mtime_ns), True))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
    if problems:
        raise InputError(*problems)
    return found


def _expand(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        found = []
        for folder, folders, names in os.walk(pattern):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [
                os.path.join(folder, name) for name in sorted(names) if not name.startswith(".")
            ]
        return sorted(path for path in found if os.path.isfile(path))
    if os.path.exists(pattern):  # a name that happens to hold * or [ is a name first
        return [pattern]
    found = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        found += _expand(path) if os.path.isdir(path) else [path]
    return found


def _find_remote(pattern: str) -> list[Found]:
    system, path = _system(pattern)
    if _is_http(pattern):  # a server has files, no folders
        info = system.info(path)
        stamp = info.get("ETag") or info.get("Last-Modified") or ""
        size = info.get("size")
        return [
            Found(pattern, -1 if size is None else size, stamp, _serves_ranges(system, path, size))
        ]
    if glob.has_magic(path):
        infos = system.glob(path, detail=True).values()
    elif system.isdir(path):
        infos = system.find(path, detail=True).values()
    else:
        infos = [system.info(path)]
    scheme = pattern.split("://", 1)[0]
    host = urlsplit(pattern).netloc if scheme == "hdfs" else ""
    files = [
        info
        for info in infos
        if info["type"] == "file" and not os.path.basename(info["name"]).startswith(".")
    ]
    if not files:
        raise InputError(
            f"{pattern}: " + ("no file matches" if glob.has_magic(path) else "an empty folder")
        )
    return [
        Found(f"{scheme}://{host}{info['name']}", info["size"], _stamp(info), True)
        for info in sorted(files, key=lambda info: info["name"])
    ]


def _stamp(info: dict) -> str:
    value = info.get("blob_id") or info.get("mtime") or ""  # the hub's files have a blob's hash
    return str(value)


def _serves_ranges(system, url: str, size: int | None) -> bool:
    """Whether a server sends a part of a file when it is asked for one; many test and static servers send it whole."""
    if not size:
        return False
    with system.open(url, "rb", block_size=CHUNK_BYTES) as file:
        try:
            file.seek(size - 1)
            return len(file.read(1)) == 1
        except (ValueError, OSError):
            return False


def _system(url: str):
    """(file system, path on it) of a URL."""
    parts = urlsplit(url)
    scheme = "gs" if parts.scheme == "gcs" else parts.scheme
    path = url if scheme in ("http", "https") else url.split("://", 1)[1]
    if scheme == "hdfs":
        path = parts.path
    key = (os.getpid(), scheme, parts.netloc if scheme in ("hdfs", "s3") else "")
    if key not in _opened:
        _opened[key] = _connect(scheme, parts)
    return _opened[key], path


def _connect(scheme: str, parts):
    if scheme in ("http", "https"):
        from fsspec.implementations.http import HTTPFileSystem

        return HTTPFileSystem(skip_instance_cache=True)
    if scheme == "hf":
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True)
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow import fs

    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if endpoint is None and region is None:
            region = fs.resolve_s3_region(parts.netloc)
        return ArrowFSWrapper(
            fs.S3FileSystem(endpoint_override=endpoint, region=region), skip_instance_cache=True
        )
    if scheme == "gs":
        if emulator := os.environ.get(
            "STORAGE_EMULATOR_HOST"
        ):  # where Google's own clients look for another server, too
            kind, _, host = emulator.rpartition("://")
            return ArrowFSWrapper(
                fs.GcsFileSystem(anonymous=True, scheme=kind or "http", endpoint_override=host),
                skip_instance_cache=True,
            )
        return ArrowFSWrapper(fs.GcsFileSystem(), skip_instance_cache=True)
    return ArrowFSWrapper(
        fs.HadoopFileSystem(parts.hostname or "default", parts.port or 0), skip_instance_cache=True
    )


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _asked(url: str, ask):
    """ask(), again after a failure that may pass. Raises InputError with the last one's reason."""
    for attempt in range(TRIES):
        try:
            return ask()
        except InputError:
            raise
        except FileNotFoundError:
            raise InputError(f"{url}: no such file") from None
        except (PermissionError, ImportError) as error:
            raise InputError(f"{url}: {_reason(error)}") from None
        except Exception as error:  # each library has exceptions of its own
            if attempt == TRIES - 1 or getattr(error, "status", 500) in (400, 401, 403, 405, 410):
                raise InputError(f"{url}: {_reason(error)}") from None
            time.sleep(1 << attempt)
    raise AssertionError("unreachable")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
