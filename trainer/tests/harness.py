"""Runs gangs of muster-trainer processes as torchrun or Muster would, and reads what they say."""

import contextlib
import json
import os
import random
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from pathlib import Path

PREPARE = Path(__file__).resolve().parent.parent / "prepare"
TINY_MODEL = {  # GQA, untied
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": 257,
}
START_TIMEOUT_S = 60  # generous: the machine may be busy; every wait is for a condition


def make_tokens(folder: Path) -> Path:
    """Some of Python's own sources, and documents that are shorter than a row, whichever Python it is."""
    stdlib = sysconfig.get_paths()["stdlib"]
    short = folder.with_name(folder.name + "-short")
    short.mkdir()
    for i in range(200):
        (short / f"{i}.py").write_text(f"value_{i} = {i * i}" + "  # " * (i % 5) + "\n")
    subprocess.run(
        [
            sys.executable,
            PREPARE,
            "--input",
            f"{stdlib}/json/*.py",
            f"{stdlib}/email/*.py",
            f"{stdlib}/asyncio/*.py",
            f"{short}/*.py",
            "--tokenizer",
            "bytes",
            "--max-length",
            "64",
            "--output",
            folder,
        ],
        check=True,
        capture_output=True,
        env=clean_environment(),
    )
    return folder


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without what Muster or torchrun may have put there."""
    ours = ("MUSTER_", "TORCHELASTIC_")
    ranks = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ranks
        and (not key.startswith(ours) or key in ("MUSTER_PYTHON", "MUSTER_TRAINER_LIB"))
    }
    return kept | more


@contextlib.contextmanager
def s3_server(bucket: str):
    """An S3-compatible server in this process with one empty bucket: (a boto3 client, the environment that names the server)."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        # Its buckets are this process's, not this server's: another module's may be there.
        urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket=bucket)
        yield (
            client,
            {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ENDPOINT_URL": endpoint,
            },
        )
    finally:
        server.stop()


class Gang:
    """The ranks of one attempt. Use as a context manager: none outlives it.

    `resume_from`: checkpoints, the best first; None: the run looks for them itself. Without `checkpoints` it has no place for them.
    `patience_s`: how long it may say nothing."""

    def __init__(
        self,
        trainer_bin: str,
        config: dict,
        ranks: int,
        folder: Path,
        *,
        resume_from=(),
        dump_tokens: Path | None = None,
        interval_s: float = 0,
        keep: int = 100,
        checkpoints: bool = True,
        patience_s: float = START_TIMEOUT_S,
        **environment: str,
    ):
        folder.mkdir(parents=True)
        self.folder, self.ranks, self.patience_s = folder, ranks, patience_s
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        self.steps: list[int] = []  # that rank 0 has told of so far
        self.events: list[dict] = []  # datagrams so far, but for
        self.own_times: dict[int, list[float]] = {}  # what each rank said of its own
        config_file = folder / "trainer.json"
        config_file.write_text(json.dumps(config))
        self._socket_folder = tempfile.mkdtemp(
            prefix="mt"
        )  # short: a socket's path has at most 107 bytes
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind(f"{self._socket_folder}/s")
        self._buffer = b""
        port = free_port()
        self.started = time.monotonic()
        self.processes: list[subprocess.Popen] = []
        for rank in range(ranks):
            command = [
                trainer_bin,
                "train",
                "--config",
                str(config_file),
                "--metrics",
                str(folder / "metrics.jsonl"),
            ]
            if dump_tokens is not None:
                command += ["--dump-tokens", str(dump_tokens)]
            env = clean_environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks),
                GROUP_RANK="0",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                MUSTER_CHECKPOINT_DIR=str(self.checkpoints) if checkpoints else "",
                **(
                    {}
                    if resume_from is None
                    else {"MUSTER_RESUME_FROM": ",".join(map(str, resume_from))}
                ),
                MUSTER_CHECKPOINT_KEEP=str(keep),
                MUSTER_CHECKPOINT_INTERVAL_S=str(interval_s),
                MUSTER_PROGRESS_SOCKET=f"{self._socket_folder}/s",
                **environment,
            )
            with (
                open(folder / f"{rank}.err", "wb") as err,
                open(folder / f"{rank}.out", "wb") as out,
            ):
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env=env,
                        cwd=folder,
                        stdin=subprocess.DEVNULL,
                        stderr=err,
                        bufsize=0,
                        stdout=subprocess.PIPE if rank == 0 else out,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.processes[0].stdout.close()
        self._socket.close()
        shutil.rmtree(self._socket_folder)

    def wait_for_step(self, step: int) -> None:
        """Returns as soon as rank 0 has told of `step`."""
        self._read(lambda: any(told >= step for told in self.steps))
        assert any(told >= step for told in self.steps), (
            f"ended before step {step}\n{self.stderr()}"
        )

    def wait_for_event(self, kind: str) -> None:
        """Returns as soon as rank 0 has told a line of that kind."""
        self._read(lambda: any(kind in event for event in self.events))
        self.event(kind)

    def wait_for_profiles(self, count: int) -> None:
        profiles = self.folder / "profile"
        self._read(lambda: len(list(profiles.glob("*.json"))) >= count)
        assert len(list(profiles.glob("*.json"))) >= count, f"the run ended before\n{self.stderr()}"

    def wait_for_line(self, start: bytes) -> float:
        """The monotonic time at which rank 0 said a line that begins with `start`."""
        out = self.processes[0].stdout
        while line := out.readline():
            if line.startswith(start):
                return time.monotonic()
        raise AssertionError(f"ended without saying {start!r}\n{self.stderr()}")

    def wait(self) -> list[int]:
        """Exit codes of all ranks, once all have ended."""
        self._read(lambda: False)
        codes = [process.wait(timeout=self.patience_s) for process in self.processes]
        self.take_datagrams()
        return codes

    def finish(self) -> "Gang":
        codes = self.wait()
        assert codes == [0] * self.ranks, f"exit codes {codes}\n{self.stderr()}"
        return self

    def signal(self, number: int, ranks=None) -> None:
        for rank in range(self.ranks) if ranks is None else ranks:
            self.processes[rank].send_signal(number)

    def limit_file_size(self, rank: int, size: int | None) -> None:
        """Files that the rank writes may have this many bytes at most; None: any."""
        resource.prlimit(
            self.processes[rank].pid,
            resource.RLIMIT_FSIZE,
            (resource.RLIM_INFINITY if size is None else size, resource.RLIM_INFINITY),
        )

    def stderr(self) -> str:
        return "".join(
            f"[rank {rank}] {line}\n"
            for rank in range(self.ranks)
            for line in (self.folder / f"{rank}.err").read_text(errors="replace").splitlines()[-20:]
        )

    def peak_bytes(self) -> list[int]:
        """The most memory that each rank has had so far, all of which must still run."""
        peaks = []
        for process in self.processes:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
        return peaks

    @property
    def lines(self) -> list[dict]:
        """Rank 0's metrics of each step so far, exactly."""
        path = self.folder / "metrics.jsonl"
        return (
            [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            if path.exists()
            else []
        )

    def metric(self, name: str) -> dict[int, float]:
        """{step: value} as rank 0 told it, exactly."""
        return {line["step"]: float(line[name]) for line in self.lines}

    def event(self, kind: str) -> dict:
        found = [event[kind] for event in self.events if kind in event]
        assert found, f"no {kind} line came\n{self.stderr()}"
        return found[-1]

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps with a published checkpoint, newest first."""
        return sorted(
            (
                int(path.parent.name.removeprefix("step-"))
                for path in self.checkpoints.glob("step-*/index.json")
            ),
            reverse=True,
        )

    def _read(self, enough) -> None:
        """Reads rank 0's stdout and the datagrams until enough() or the end of stdout."""
        out = self.processes[0].stdout
        deadline = time.monotonic() + self.patience_s
        while not enough():
            ready, _, _ = select.select(
                [out, self._socket], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, f"nothing was said for {self.patience_s} s\n{self.stderr()}"
            deadline = time.monotonic() + self.patience_s
            if self._socket in ready:
                self.take_datagrams()
            if out in ready:
                data = os.read(out.fileno(), 1 << 16)
                with open(self.folder / "0.out", "ab") as copy:
                    copy.write(data)
                if not data:
                    return
                *whole, self._buffer = (self._buffer + data).split(b"\n")
                for line in whole:
                    if line.startswith(b"step="):
                        self.steps.append(int(line[5:].split()[0]))

    def take_datagrams(self) -> None:
        while True:
            try:
                event = json.loads(self._socket.recv(1 << 16, socket.MSG_DONTWAIT))
                if "own_time_s" in event:
                    self.own_times.setdefault(event["rank"], []).append(event["own_time_s"])
                else:
                    self.events.append(event)
            except BlockingIOError:
                return


def free_port() -> int:
    """A port that nobody listens on, below the range from which the kernel takes ports for connections: one of those
    could be gone again before rank 0 binds it."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def read_batches(path: Path, batch: int, length: int) -> list[tuple[int, ...]]:
    """--dump-tokens: one tuple of batch * length ids for each step."""
    data = path.read_bytes()
    count = len(data) // (4 * batch * length)
    return [
        struct.unpack_from(f"<{batch * length}i", data, step * 4 * batch * length)
        for step in range(count)
    ]


def relative(value: float, reference: float) -> float:
    return abs(value - reference) / abs(reference)


def trainer_binary() -> str:
    """For the benchmarks: MUSTER_TRAINER_BIN, or the end with a message."""
    path = os.environ.get("MUSTER_TRAINER_BIN", "")
    if not os.access(path, os.X_OK):
        sys.exit(f"MUSTER_TRAINER_BIN={path!r} is no program; set it to the built muster-trainer")
    return os.path.abspath(path)


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in open("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        "unknown CPU",
    )
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def figure(
    name: str, value: float, unit: str, bar: float | None, peer=None, at_most: bool = True
) -> dict:
    """`bar`: None where there is none."""
    return {
        "figure": name,
        "value": value,
        "unit": unit,
        "peer": peer,
        "bar": "-" if bar is None else f"{'<=' if at_most else '>='} {bar:g}",
        "holds": bar is None or (value <= bar if at_most else value >= bar),
    }


def report(figures: list[dict]) -> int:
    """Prints one JSON line a figure; returns the exit code."""
    for one in figures:
        print(json.dumps(one))
    return 0 if all(one["holds"] for one in figures) else 1
