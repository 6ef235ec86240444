"""Exports to an S3-compatible store: config.json goes first and comes last, whatever interrupts them."""

import contextlib
import http.client
import http.server
import re
import signal
import subprocess
import threading
from pathlib import Path

import kills
import pytest
import resume
from harness import Gang, clean_environment, s3_server

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
UNFINISHED = "export.unfinished"


class Relay(http.server.BaseHTTPRequestHandler):
    """Hands requests on to the store, once `server.before(method, key)` has let them: it may give (status, body) instead."""

    protocol_version = "HTTP/1.1"

    def _hand_on(self):
        body = self._body()
        given = {k: v for k, v in self.headers.items() if k.lower() != "transfer-encoding"}
        path, _, query = self.path.partition("?")
        key = path.split("/", 2)[2] if path.count("/") > 1 else ""
        refused = self.server.before(self.command, key)
        if refused:
            status, headers, content = refused[0], [("Content-Type", "application/xml")], refused[1]
        else:
            connection = http.client.HTTPConnection(self.server.behind)
            connection.request(self.command, self.path, body, given)
            answer = connection.getresponse()
            status, headers, content = answer.status, answer.getheaders(), answer.read()
            length = answer.getheader("Content-Length")
            connection.close()
            # An object is there once it is put, or once the parts of it are put together.
            parts = self.command == "POST" and "uploadId=" in query
            whole = self.command in ("PUT", "DELETE") and "uploadId=" not in query
            if status < 300 and (parts or whole):
                self.server.changes.append(("DELETE" if self.command == "DELETE" else "PUT", key))
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        told = self.command == "HEAD" and not refused and length
        self.send_header("Content-Length", length if told else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue  # what trails
        return body

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _hand_on

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def relay(environment: dict, before=lambda method, key: None):
    """The environment that names a relay to the store, and the relay: what it changed is in `changes`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    server.daemon_threads = True
    server.behind = environment["AWS_ENDPOINT_URL"].removeprefix("http://")
    server.before, server.changes = before, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}, server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def store():
    with s3_server("acme") as (client, environment):
        yield client, environment


def objects(client, prefix: str) -> dict[str, bytes]:
    """Below the prefix, but for the markers that the client puts in the place of directories."""
    listed = client.list_objects_v2(Bucket="acme", Prefix=f"{prefix}/").get("Contents", [])
    return {
        one["Key"].removeprefix(f"{prefix}/"): client.get_object(Bucket="acme", Key=one["Key"])[
            "Body"
        ].read()
        for one in listed
        if not one["Key"].endswith("/")
    }


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def settings(tokens, place: str, **more) -> dict:
    return resume.config(tokens, max_steps=2, save_steps=2, export=place) | more


def exported(trainer_bin, checkpoint, output, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [trainer_bin, "export", "--checkpoint", checkpoint, "--output", output],
        capture_output=True,
        text=True,
        env=clean_environment(**environment),
    )


def test_a_run_and_the_command_write_what_a_directory_gets(trainer_bin, tokens, store, tmp_path):
    client, environment = store
    staging = tmp_path / "staging"
    config = settings(tokens, "s3://acme/models/new/")
    with relay(environment) as (through, server):
        with Gang(
            trainer_bin, config, 2, tmp_path / "run", MUSTER_EXPORT_STAGING=str(staging), **through
        ) as gang:
            gang.finish()
    # `staged` would have the agent publish it.
    assert gang.event("export") == {"target": "s3://acme/models/new"}
    assert not staging.exists()
    assert "exported to s3://acme/models/new\n" in (tmp_path / "run" / "0.out").read_text()
    done = exported(trainer_bin, gang.checkpoint(2), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    wanted = files(tmp_path / "model")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(wanted)
    assert objects(client, "models/new") == wanted

    made = [key for kind, key in server.changes if kind == "PUT" and not key.endswith("/")]
    assert made[0] == made[1] == f"models/new/{UNFINISHED}", "the place is tried at the start"
    assert made[-1] == "models/new/config.json"
    assert [key for kind, key in server.changes if kind == "DELETE"][-1].endswith(UNFINISHED)

    done = exported(trainer_bin, gang.checkpoint(2), "s3://acme/models/again", **environment)
    assert done.returncode == 0 and "to s3://acme/models/again" in done.stdout, done.stderr
    assert objects(client, "models/again") == wanted


def test_requests_that_the_store_is_too_busy_for_are_sent_again(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    tries: dict[tuple[str, str], int] = {}

    def before(method, key):
        tries[method, key] = tries.get((method, key), 0) + 1
        return (503, BUSY) if method == "PUT" and tries[method, key] <= 2 else None

    with relay(environment, before) as (through, _):
        with Gang(
            trainer_bin, settings(tokens, "s3://acme/busy"), 1, tmp_path / "run", **through
        ) as gang:
            gang.finish()
    assert "config.json" in objects(client, "busy") and tries["PUT", "busy/config.json"] == 3


def test_one_that_is_interrupted_looks_unfinished_and_the_next_attempt_writes_it(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    # What an earlier export and its owner have left there.
    old = {
        "config.json": b"{}",
        "model.safetensors.index.json": b"{}",
        "model-00001-of-00001.safetensors": b"old",
    }
    # Which no export has, whatever their names begin with.
    own = {
        "OWN.md": b"of a user",
        "model-7b/model.safetensors": b"of a user",
        "model-final.safetensors": b"of a user",
        "model-0001-of-00001.safetensors": b"of a user",
    }
    old |= own
    for name, content in old.items():
        client.put_object(Bucket="acme", Key=f"cut/{name}", Body=content)
    # 12 MB of weights: an upload in two parts.
    config = settings(
        tokens,
        "s3://acme/cut",
        model=kills.MODEL | {"num_hidden_layers": 5},
        micro_batch_size=1,
        global_batch_size=2,
    )
    gangs = []

    def before(method, key):
        if method == "PUT" and key == "cut/generation_config.json":
            gangs[0].signal(signal.SIGKILL)
            return 500, b""
        return None

    with relay(environment, before) as (through, _):
        with Gang(trainer_bin, config, 2, tmp_path / "first", **through) as first:
            gangs.append(first)
            assert first.wait() == [-signal.SIGKILL] * 2, first.stderr()
    left = objects(client, "cut")
    assert set(left) == {UNFINISHED, "model.safetensors", "model-00001-of-00001.safetensors", *own}
    assert len(left["model.safetensors"]) > 11e6
    with Gang(
        trainer_bin,
        config,
        2,
        tmp_path / "second",
        resume_from=[first.checkpoint(2)],
        **environment,
    ) as second:
        second.finish()
    done = exported(trainer_bin, first.checkpoint(2), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert objects(client, "cut") == files(tmp_path / "model") | own
    again = exported(trainer_bin, first.checkpoint(2), "s3://acme/cut", **environment)
    assert again.returncode == 0, again.stderr


def test_of_two_at_once_the_one_that_began_first_gives_up(trainer_bin, tokens, store, tmp_path):
    client, environment = store
    with relay(environment) as (through, server):
        with Gang(
            trainer_bin, settings(tokens, "s3://acme/once"), 1, tmp_path / "once", **through
        ) as gang:
            gang.finish()
    made = [
        key.removeprefix("once/")
        for kind, key in server.changes
        if kind == "PUT" and not key.endswith("/")
    ]
    assert made[-1] == "config.json"

    # The other begins while the last file goes there: only the look before config.json is left.
    def before(method, key):
        if method == "PUT" and key == f"twice/{made[-2]}":
            client.put_object(Bucket="acme", Key=f"twice/{UNFINISHED}", Body=b"job 18")
        return None

    with relay(environment, before) as (through, server):
        with Gang(
            trainer_bin, settings(tokens, "s3://acme/twice"), 1, tmp_path / "run", **through
        ) as gang:
            assert gang.wait() == [1]
    assert ("PUT", f"twice/{made[-2]}") in server.changes
    assert ("PUT", "twice/config.json") not in server.changes, "nobody takes it for whole"
    assert (
        "export failed: s3://acme/twice: somebody else has begun an export there meanwhile, and goes on with it: job 18"
        in gang.stderr()
    )
    assert "config.json" not in objects(client, "twice")


def test_one_that_finds_anothers_mark_before_its_weights_leaves_those_that_are_there(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    for name in ("config.json", "model.safetensors.index.json"):
        client.put_object(Bucket="acme", Key=f"early/{name}", Body=b"{}")

    def before(method, key):
        # The other begins once this one has taken an earlier export's index away.
        if method == "DELETE" and key == "early/model.safetensors.index.json":
            client.put_object(Bucket="acme", Key="early/model.safetensors", Body=b"the other's")
            client.put_object(Bucket="acme", Key=f"early/{UNFINISHED}", Body=b"job 18")
        return None

    with Gang(
        trainer_bin, resume.config(tokens, max_steps=1, save_steps=1), 1, tmp_path / "run"
    ) as gang:
        gang.finish()
    with relay(environment, before) as (through, _):
        done = exported(trainer_bin, gang.checkpoint(1), "s3://acme/early", **through)
    assert done.returncode == 1
    assert "give each export a prefix of its own" in done.stderr
    assert objects(client, "early") == {"model.safetensors": b"the other's", UNFINISHED: b"job 18"}


@pytest.mark.parametrize(
    ("during", "not_written"),
    [("model.safetensors", "generation_config.json"), ("generation_config.json", "tokenizer.json")],
)
def test_what_goes_along_is_left_to_who_has_claimed_the_place_since(
    trainer_bin, tokens, store, tmp_path, during, not_written
):
    client, environment = store
    place = f"along-{during}"

    def before(method, key):
        if method == "PUT" and key == f"{place}/{during}":
            client.put_object(Bucket="acme", Key=f"{place}/{not_written}", Body=b"the other's")
            client.put_object(Bucket="acme", Key=f"{place}/{UNFINISHED}", Body=b"job 18")
        return None

    with Gang(
        trainer_bin, resume.config(tokens, max_steps=1, save_steps=1), 1, tmp_path / "run"
    ) as gang:
        gang.finish()
    with relay(environment, before) as (through, _):
        done = exported(trainer_bin, gang.checkpoint(1), f"s3://acme/{place}", **through)
    assert done.returncode == 1 and "goes on with it: job 18" in done.stderr
    left = objects(client, place)
    assert left[not_written] == b"the other's"
    assert "config.json" not in left and left[UNFINISHED] == b"job 18"


@pytest.mark.parametrize(
    ("during", "not_written"),
    [
        ("model.safetensors", "adapter/adapter_model.safetensors"),
        ("adapter/adapter_model.safetensors", "adapter/adapter_config.json"),
    ],
)
def test_an_adapter_is_left_to_who_has_claimed_the_place_since(
    trainer_bin, tokens, store, tmp_path, during, not_written
):
    client, environment = store
    place = f"adapted-{not_written.replace('/', '-')}"

    def before(method, key):
        if method == "PUT" and key == f"{place}/{during}":
            client.put_object(Bucket="acme", Key=f"{place}/{not_written}", Body=b"the other's")
            client.put_object(Bucket="acme", Key=f"{place}/{UNFINISHED}", Body=b"job 18")
        return None

    begin = resume.config(tokens, max_steps=1, save_steps=1)
    with Gang(trainer_bin, begin, 1, tmp_path / "begin") as gang:
        gang.finish()
    assert exported(trainer_bin, gang.checkpoint(1), tmp_path / "init").returncode == 0
    del begin["model"]
    config = begin | {
        "init": str(tmp_path / "init"),
        "lora": {"rank": 4},
        "export": f"s3://acme/{place}",
    }
    with relay(environment, before) as (through, server):
        with Gang(trainer_bin, config, 1, tmp_path / "run", **through) as gang:
            assert gang.wait() == [1]
    assert "goes on with it: job 18" in gang.stderr()
    assert ("PUT", f"{place}/{during}") in server.changes
    left = objects(client, place)
    assert left[not_written] == b"the other's"
    assert "config.json" not in left and left[UNFINISHED] == b"job 18"


def test_one_that_finds_anothers_mark_after_its_config_takes_that_back(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    looks = []

    def before(method, key):
        if method == "PUT" and key == "late/config.json":
            client.put_object(Bucket="acme", Key=f"late/{UNFINISHED}", Body=b"job 18")
            looks.append(key)
        return None

    with Gang(
        trainer_bin, resume.config(tokens, max_steps=1, save_steps=1), 1, tmp_path / "run"
    ) as gang:
        gang.finish()
    with relay(environment, before) as (through, _):
        done = exported(trainer_bin, gang.checkpoint(1), "s3://acme/late", **through)
    assert done.returncode == 1 and looks
    assert "goes on with it: job 18; start it again" in done.stderr
    left = objects(client, "late")
    assert "config.json" not in left and left[UNFINISHED] == b"job 18"


def test_a_mark_in_the_directory_of_a_tokenizer_does_not_go_along(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    with Gang(
        trainer_bin, resume.config(tokens, max_steps=1, save_steps=1), 1, tmp_path / "run"
    ) as gang:
        gang.finish()
    made = exported(trainer_bin, gang.checkpoint(1), tmp_path / "model")
    assert made.returncode == 0, made.stderr
    (tmp_path / "model" / UNFINISHED).write_text("left by a download")
    # The model's own directory is where the next export takes its tokenizer from.
    done = subprocess.run(
        [
            trainer_bin,
            *("export", "--checkpoint", gang.checkpoint(1)),
            *("--output", "s3://acme/marked", "--tokenizer", tmp_path / "model"),
        ],
        capture_output=True,
        text=True,
        env=clean_environment(**environment),
    )
    assert done.returncode == 0, done.stderr
    left = objects(client, "marked")
    assert "config.json" in left and "tokenizer.json" in left and UNFINISHED not in left


def test_a_place_that_cant_be_written_is_refused_before_the_first_step(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    client.put_object(Bucket="acme", Key="corpus/part-1.jsonl", Body=b"{}")

    def denied(method, key):
        return (403, DENIED) if method == "PUT" and key.startswith("closed/") else None

    with relay(environment, denied) as (through, _):
        for name, place, wanted in (
            ("foreign", "s3://acme/corpus", "is no earlier export, such as part-1.jsonl"),
            ("nowhere", "s3://nowhere/model", "see that the bucket is there"),
            ("closed", "s3://acme/closed", "the credentials"),
            (
                "malformed",
                "s3://acme",
                "must be s3://BUCKET/PREFIX; got s3://acme. Or give a directory",
            ),
        ):
            with Gang(trainer_bin, settings(tokens, place), 1, tmp_path / name, **through) as gang:
                assert gang.wait() == [2], gang.stderr()
            assert re.search(f"trainer.export: .*{re.escape(wanted)}", gang.stderr())
            assert not gang.lines
    assert set(objects(client, "corpus")) == {"part-1.jsonl"}
