"""Objects of S3, and of stores that speak its protocol, by boto3. Credentials, region and endpoint come from where AWS's tools look: AWS_*, ~/.aws, the
machine's role; AWS_ENDPOINT_URL names another store."""

import base64
import contextlib
import fnmatch
import functools
import hashlib
import io
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from muster_score import stopping
from muster_score.errors import InputError, StoreFailed

SCHEME = "s3://"
NEEDS = "s3:// needs boto3 1.36 or newer: pip install -U boto3"
ANSWER_S = 30  # without a byte of an answer: it won't come
TRY_S, LEAST_TRIES = 60, 3  # of what may work later: for so long, and so often at least
CONFLICT_TRIES = 10  # of a PUT while another one of the same name is on its way
RIGHTS = "s3:ListBucket, s3:GetObject, s3:PutObject"
WRONG = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "403"}
WRONG |= {
    "ExpiredToken",
    "InvalidToken",
    "PermanentRedirect",
    "InvalidBucketName",
    "EntityTooLarge",
}
BUSY = {"RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete", "SlowDown"}
BUSY |= {"Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded"}
THERE = {"412", "PreconditionFailed", "ConditionalRequestConflict"}  # or on its way
NO_CONDITIONS = "NotImplemented"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Object:
    url: str
    size: int
    etag: str
    told: dict[str, str] = field(default_factory=dict, compare=False)  # by whoever has put it


def is_url(path: str) -> bool:
    return path.startswith(SCHEME)


def split(url: str) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise InputError(f"{url}: there is no bucket in it; write s3://BUCKET/PREFIX/")
    return bucket, key


@functools.cache
def client():
    """Of this process. Threads may share it."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise InputError(f"{NEEDS} ({error})") from error
    try:
        # Stores of others refuse the checksums that newer boto3s add by themselves. boto3 tries once: SIGTERM isn't heard between its tries.
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=10,
            read_timeout=ANSWER_S,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
    except TypeError as error:
        raise InputError(f"{NEEDS} (this is {boto3.__version__})") from error
    region = os.environ.get("AWS_REGION") or None  # boto3 reads AWS_DEFAULT_REGION alone
    try:
        return boto3.client("s3", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise InputError(f"s3://: {error}. See AWS_ENDPOINT_URL, AWS_REGION, ~/.aws") from error


class _Busy(StoreFailed):
    """The next time it may work."""


def _asked(url: str, ask: Callable[..., Result], *words, **named) -> Result:
    """What `ask` gives, which is called again where the store was away, busy, or broke off. InputError: what is asked can't be. StoreFailed: it went wrong
    all the time, or in another way. Stopped: this worker was told to stop between two tries."""
    client()  # that there is a boto3 at all
    began_s, tries = time.monotonic(), 0
    while True:
        try:
            with _errors(url):
                return ask(*words, **named)
        except _Busy:
            tries += 1
            if tries >= LEAST_TRIES and time.monotonic() - began_s >= TRY_S:
                raise
        stopping.wait(random.uniform(0.5, 1) * min(10, 0.25 * 2**tries))  # not all at once


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    """boto3's, as ours."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        code, message = _code(error), error.response.get("Error", {}).get("Message", "")
        if code in WRONG:
            remedy = "See bucket, credentials (AWS_*, secrets: of the job) and their rights"
            raise InputError(f"{url}: {code}: {message}. {remedy} ({RIGHTS})") from error
        kind = _Busy if _is_busy(error) else StoreFailed
        raise kind(f"{url}: {code}: {message}") from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.ProfileNotFound,
    ) as error:
        raise InputError(
            f"{url}: {error}. Give the job secrets: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY], or its hosts a role or ~/.aws"
        ) from error
    except exceptions.ParamValidationError as error:
        raise InputError(f"{url}: {error}") from error
    except exceptions.BotoCoreError as error:
        raise _Busy(f"{url}: {error}") from error


def _code(error) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _is_busy(error) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _code(error) in BUSY or status == 429 or (status >= 500 and status != 501)


def _absent(error) -> bool:
    return _code(error) in ("404", "NoSuchKey", "NotFound")


# ---- which there are ----


def below(url: str) -> Iterator[Object]:
    """Those whose key begins so."""
    bucket, prefix = split(url)
    after = {}
    while True:
        named = {"Bucket": bucket, "Prefix": prefix} | after
        page = _asked(url, client().list_objects_v2, **named)
        for one in page.get("Contents", ()):
            yield Object(f"{SCHEME}{bucket}/{one['Key']}", one["Size"], one["ETag"])
        if not page.get("IsTruncated"):
            return
        after = {"ContinuationToken": page["NextContinuationToken"]}
        stopping.stop_if_told()


def find(pattern: str) -> list[Object]:
    """As glob: * stays within a folder, ** goes below it. In their order."""
    bucket, key = split(pattern)
    magic = [at for at in map(key.find, "*?[") if at >= 0]
    plain = key[: min(magic)] if magic else key
    found = below(f"{SCHEME}{bucket}/{plain}")
    return sorted((one for one in found if matches(one.url, pattern)), key=lambda one: one.url)


def matches(url: str, pattern: str) -> bool:
    if url.endswith("/"):  # what consoles make for a folder
        return False
    return _matches(url.split("/"), pattern.split("/"))


def _matches(words: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "**":
        if pattern == ["**"]:
            return bool(words)
        return any(_matches(words[at:], pattern[1:]) for at in range(len(words) + 1))
    if not words or (words[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(words[0], pattern[0]) and _matches(words[1:], pattern[1:])


def head(url: str) -> Object | None:
    """None: it isn't there."""
    return _asked(url, _head, url)


def _head(url: str) -> Object | None:
    from botocore.exceptions import ClientError

    bucket, key = split(url)
    try:
        found = client().head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if _absent(error):
            return None
        raise
    # As headers, their names come back in whichever letters a store likes.
    told = {name.lower(): value for name, value in found.get("Metadata", {}).items()}
    return Object(url, found["ContentLength"], found["ETag"], told)


# ---- reading ----


class Ranges(io.RawIOBase):
    """An object by its ranges, each of which has to be of the one that was planned."""

    def __init__(self, file: Object):
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer) -> int:
        count = min(len(buffer), self._file.size - self._at)
        if count <= 0:
            return 0
        buffer[:count] = _range(self._file, self._at, count)
        self._at += count
        return count


def opened(file: Object, buffer: int) -> io.BufferedReader:
    """Reads at least `buffer` bytes at a time."""
    return io.BufferedReader(Ranges(file), buffer)


def _range(file: Object, begin: int, count: int) -> bytes:
    return _asked(file.url, _get, file, begin, count)


def _get(file: Object, begin: int, count: int) -> bytes:
    from botocore.exceptions import ClientError

    bucket, key = split(file.url)
    place = {"Bucket": bucket, "Key": key, "Range": f"bytes={begin}-{begin + count - 1}"}
    try:
        data = client().get_object(**place, IfMatch=file.etag)["Body"].read()
    except ClientError as error:
        if _absent(error) or _code(error) in ("412", "PreconditionFailed", "InvalidRange"):
            raise InputError(
                f"{file.url} has changed since the shards were planned. Put it back as it was, or take another --output"
            ) from error
        raise
    if len(data) != count:
        raise _Busy(f"{file.url}: {len(data)} bytes came where {count} were asked for")
    return data


# ---- writing ----


def put_new(url: str, body: bytes, told: dict[str, str]) -> Object:
    """What has that name from now on: this, or what had it before. Where a store knows no conditions, what comes at the same time is replaced, whole."""
    for left in reversed(range(CONFLICT_TRIES)):
        done = _asked(url, _put_if_new, url, body, told)
        if isinstance(done, Object):
            return done
        there = head(url)  # of our own request, too, where its answer was lost
        if there is not None:
            return there
        if done == NO_CONDITIONS:
            return put(url, body, told)
        if left:
            stopping.wait(0.5)
    raise StoreFailed(f"{url}: it can't be written, as it is there, and isn't there")


def _put_if_new(url: str, body: bytes, told: dict[str, str]) -> Object | str:
    """Or the code by which the store has refused the condition."""
    from botocore.exceptions import ClientError

    try:
        return _put(url, body, told, {"IfNoneMatch": "*"})
    except ClientError as error:
        if _code(error) in THERE | {NO_CONDITIONS}:
            return _code(error)
        raise


def put(url: str, body: bytes, told: dict[str, str]) -> Object:
    return _asked(url, _put, url, body, told, {})


def _put(url: str, body: bytes, told: dict[str, str], condition: dict[str, str]) -> Object:
    bucket, key = split(url)
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    place = {"Bucket": bucket, "Key": key, "ContentMD5": digest}
    done = client().put_object(**place, **condition, Body=body, Metadata=told)
    return Object(url, len(body), done["ETag"], told)
