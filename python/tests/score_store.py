"""What the tests of muster_score with an object store share: rows and parts there, and a store that answers otherwise than it would. The store itself, an empty
bucket, rows: conftest.py."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

from muster_score.plan import Options, Plan, make_plan
from score_helpers import ENVIRONMENT


def environment() -> dict:
    return {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "MUSTER_JOB": "7_0"}


def put_rows(client, key: str, numbers) -> None:
    body = "".join(f'{{"id": {i}, "prompt": "p{i}"}}\n' for i in numbers)
    client.put_object(Bucket="rows", Key=key, Body=body.encode())


def words(work: Path, *more: str) -> list[str]:
    # fmt: off
    return ["--input", "s3://rows/in/*.jsonl", "--output", "s3://rows/out/", "--work", str(work), "--engine", "score_engines:Shout",
            "--shard-rows", "7", "--batch-size", "3", *more]
    # fmt: on


def score(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "muster_score", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def bodies(client, prefix: str = "out/part-") -> dict[str, bytes]:
    found = client.list_objects_v2(Bucket="rows", Prefix=prefix).get("Contents", [])
    return {
        one["Key"]: client.get_object(Bucket="rows", Key=one["Key"])["Body"].read() for one in found
    }


def scored(client) -> list[dict]:
    return [json.loads(line) for body in bodies(client).values() for line in body.splitlines()]


def manifest(client) -> dict:
    return json.loads(client.get_object(Bucket="rows", Key="out/manifest.json")["Body"].read())


def plan_of(work: Path, **options) -> Plan:
    given = {"input": "s3://rows/in/*.jsonl", "output": "s3://rows/out", "work": str(work)}
    return make_plan(Options(**given | {"shard_rows": 7, "batch_size": 3} | options))


# ---- other answers ----


class Body(io.BytesIO):
    """Of an answer. It breaks off with `error` where its bytes end."""

    def __init__(self, content: bytes = b"", error: Exception | None = None):
        super().__init__(content)
        self.error = error

    def read(self, *words) -> bytes:
        found = super().read(*words)
        if self.error is not None:
            raise self.error
        return found

    def stream(self, **_):
        yield self.read()


def answer(client, operation: str, *answers) -> list:
    """The next answers to an operation: None (the store's own), an exception, (status, code), or the Body of an object. The requests, as they come."""
    from botocore.awsrequest import AWSResponse

    left, asked = list(answers), []

    def instead(request, **_):
        asked.append(request)
        given = left.pop(0) if left else None
        if isinstance(given, Exception):
            raise given
        if isinstance(given, Body):
            return AWSResponse(request.url, 206, {}, given)
        if given is not None:
            status, code = given
            text = f"<Error><Code>{code}</Code><Message>so it is</Message></Error>"
            return AWSResponse(request.url, status, {}, Body(text.encode()))
        return None

    client.meta.events.register(f"before-send.s3.{operation}", instead)
    return asked
