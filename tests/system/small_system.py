"""The small Muster that the tests and benchmarks run: cluster lab with a few hosts in one rack, declared slots on each (two hosts of two)."""

import subprocess
from pathlib import Path

from local_system import CommandFailed, LocalSystem, job_processes, wait_for

MUSTERD = """\
listen: {server}
data_dir: {folder}/store
clusters: {folder}/etc/clusters.yaml
queues: {folder}/etc/queues.yaml
single_user: true
scheduling: {{{scheduling}}}
"""
SCHEDULING = "grow_interval: 1s, starve_after: 30s, min_runtime: 0s, spill_cost: 1s, lease: 6s, heartbeat: 1s, restart_backoff: 200ms"
CLUSTERS = """\
skus: {{slots: {{{devices}, declared: true}}}}
storages: {{shared: {{path: {folder}/storage, clusters: [lab]}}, objects: {{url: "s3://acme/muster/", clusters: [lab]}}}}
clusters:
  - name: lab
    sku: slots
    job_storage: shared
    topology: {{b1: {{r1: [{hosts}]}}}}
{cluster}"""
QUEUES = """\
queues:
  - {name: research, quota: {cpu-slot: {guarantee: 2}}, submit: ["*"]}
  - {name: prod, quota: {cpu-slot: {guarantee: 2}}, submit: ["*"]}
"""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def configure(
    system: LocalSystem,
    queues: str = QUEUES,
    *,
    hosts=("h01", "h02"),
    slots: int = 2,
    scheduling: str = SCHEDULING,
    cluster: str = "",
) -> None:
    """`cluster`: more fields of cluster lab, a line each."""
    devices = (
        f"flavour: cpu-slot, gpus: {slots}, cpus: {slots}, memory: {2 * slots}GiB, disk: 100GiB"
    )
    values = {
        "server": system.server,
        "folder": system.folder,
        "scheduling": scheduling,
        "devices": devices,
        "hosts": ", ".join(hosts),
        "cluster": "".join(f"    {line}\n" for line in cluster.splitlines()),
    }
    system.configure(
        {
            "musterd.yaml": MUSTERD.format(**values),
            "clusters.yaml": CLUSTERS.format(**values),
            "queues.yaml": queues,
            "host.yaml": f"{{{devices}}}\n",
        }
    )


def start(system: LocalSystem, queues: str = QUEUES, *, hosts=("h01", "h02"), **shape) -> None:
    configure(system, queues, hosts=hosts, **shape)
    system.start_musterd()
    for host in hosts:
        system.start_agent("lab", host)
    system.wait_hosts_up({f"lab/{host}" for host in hosts})


def waiting_job(
    system: LocalSystem,
    name: str,
    *,
    workers="1",
    queue: str = "research",
    exit_code: int = 0,
    more: str = "",
) -> str:
    """A job file whose processes each add a line `rank attempt world-size` to marks(NAME), then wait for let_go(NAME)."""
    return f"""\
name: {name}
queue: {queue}
workers: {workers}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 5s
{more}run: |
  trap 'exit 0' TERM
  echo "${{RANK-0}} $MUSTER_ATTEMPT ${{WORLD_SIZE-1}}" >> {system.folder}/{name}.marks
  while [ ! -e {system.folder}/{name}.go ]; do sleep 0.05; done
  exit {exit_code}
"""


def submit(system: LocalSystem, text: str, name: str = "job") -> int:
    """The job's number."""
    path = system.folder / f"{name}.yaml"
    path.write_text(text)
    return system.submit(path)["number"]


def prepare_tokens(system: LocalSystem, source: str) -> Path:
    """A trainer's data, made of one file's bytes."""
    tokens = system.folder / "tokens"
    words = ["prepare", "--input", source, "--tokenizer", "bytes", "--max-length", "32"]
    subprocess.run(
        [system.bin_dir / "muster-trainer", *words, "--output", tokens],
        check=True,
        capture_output=True,
    )
    return tokens


def submit_trainer(system: LocalSystem, path: Path, *more: str) -> int:
    """The job's number; a trainer's keys can be checked once a host has told its trainer's schema."""

    def submitted() -> dict | None:
        try:
            return system.submit(path, *more)
        except CommandFailed as error:
            if "Try again in some seconds" not in error.err:
                raise
            return None

    return wait_for("a host to tell its trainer's schema", submitted, 60)["number"]


def submit_waiting(system: LocalSystem, name: str, **options) -> int:
    return submit(system, waiting_job(system, name, **options), name)


def let_go(system: LocalSystem, name: str) -> None:
    (system.folder / f"{name}.go").touch()


def marks(system: LocalSystem, name: str) -> list[tuple[int, int, int]]:
    """[(rank, attempt, world size)] of everything that ever started."""
    path: Path = system.folder / f"{name}.marks"
    if not path.exists():
        return []
    return [
        tuple(int(word) for word in line.split())
        for line in path.read_text().splitlines()
        if len(line.split()) == 3
    ]


def wait_started(
    system: LocalSystem, name: str, processes: int, timeout_s: float = 20
) -> list[tuple[int, int, int]]:
    return wait_for(
        f"{processes} processes of {name} (there are {marks(system, name)})",
        lambda: (found := marks(system, name)) and len(found) >= processes and found,
        timeout_s,
    )


def rank_pid(system: LocalSystem, number: int, rank: int = 0) -> int:
    """The process of a running job, as this machine numbers it (in its own PID namespace it has another number)."""
    return next(
        pid
        for pid, environment in job_processes(system.folder).items()
        if environment["MUSTER_JOB"] == str(number) and environment.get("RANK", "0") == str(rank)
    )


def wait_ended(system: LocalSystem, number: int, timeout_s: float = 30) -> dict:
    return wait_for(
        f"job {number} to end",
        lambda: (job := system.job(number))["state"] in ENDED and job,
        timeout_s,
    )


def task(job: dict) -> dict:
    return job["tasks"][0]
