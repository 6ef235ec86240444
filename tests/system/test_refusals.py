"""What is wrong is refused, with its place and its remedy, and leaves nothing behind."""

import json
import os
import socket
import stat
import subprocess

import pytest
from local_system import wait_for
from small_system import configure

SLOT = "resources: {gpus: 1, gpu_types: [cpu-slot]}\n"
RUN = SLOT + "run: ls\n"
TRAINER = (
    SLOT
    + "trainer:\n  init: /m\n  data: t\n  max_length: 64\n  global_batch_size: 8\n  max_steps: 10\n  learning_rate: 1e-3\n"
)

# name -> (job file, what stderr must contain: place, field, remedy)
BAD_JOBS = {
    "not YAML": ("run: [a, b\n", ["not valid YAML"]),
    "tab": ("resources:\n\tgpus: 1\nrun: ls\n", ["2:", "tab"]),
    "empty": ("# nothing\n", ["run: is missing", "give run:"]),
    "a list": ("- run: ls\n", ["1:1", "must be a map"]),
    "two documents": ("run: ls\n---\nrun: ls\n", ["second document"]),
    "not UTF-8": (b"name: a\xff\nrun: ls\n", ["1:8", "UTF-8"]),
    "duplicate field": (RUN + "run: pwd\n", ["3:1", "run", "given twice"]),
    "duplicate nested field": (RUN + "env: {A: 1, A: 2}\n", ["3:13", "env.A", "given twice"]),
    "anchor": ("name: &x a\n" + RUN, ["anchor"]),
    "unknown field": (RUN + "woerkers: 2\n", ["3:1", "woerkers", "Did you mean workers?"]),
    "unknown nested field": (
        "resources: {gpu: 8}\nrun: ls\n",
        ["1:13", "resources.gpu", "Did you mean gpus?"],
    ),
    "unknown queue": ("queue: reserch\n" + RUN, ["1:8", "queue", "Did you mean research?"]),
    "unknown cluster": ("clusters: [labb]\n" + RUN, ["1:12", "clusters[0]", "Did you mean lab?"]),
    "unknown flavour": (
        "resources: {gpus: 1, gpu_types: [H100]}\nrun: ls\n",
        ["1:34", "gpu_types[0]", "cpu-slot"],
    ),
    "flavour missing": ("resources: {gpus: 1}\nrun: ls\n", ["gpu_types", "missing"]),
    "unknown storage": (RUN + "checkpoint: {storage: s3}\n", ["checkpoint.storage", "shared"]),
    "wrong type": (RUN + "workers: two\n", ["3:10", "workers", "whole number"]),
    "zero workers": (RUN + "workers: 0\n", ["workers", "from 1 to 65536"]),
    "max below min": (RUN + "workers: {min: 8, max: 4}\n", ["workers.max", "4 is below min 8"]),
    "priority out of range": (RUN + "priority: 101\n", ["priority", "0 to 100"]),
    "one and a half GPUs": (
        "resources: {gpus: 1.5, gpu_types: [cpu-slot]}\nrun: ls\n",
        ["resources.gpus", "1.5"],
    ),
    "fraction in a gang": (
        "workers: 2\nresources: {gpus: 0.5, gpu_types: [cpu-slot]}\nrun: ls\n",
        ["fraction"],
    ),
    "memory without a unit": (
        "resources: {gpus: 1, gpu_types: [cpu-slot], memory: 64}\nrun: ls\n",
        ["memory", "no unit"],
    ),
    "duration without a unit": (RUN + "time_limit: 60\n", ["3:13", "time_limit", "unit"]),
    "grace too long": (RUN + "grace: 2h\n", ["grace", "1h"]),
    "neither run nor trainer": (SLOT, ["run", "missing"]),
    "both run and trainer": (TRAINER + "run: ls\n", ["exclude each other"]),
    "image of a registry": (RUN + "image: ubuntu\n", ["image", "absolute path"]),
    "what is no secret": (RUN + "secrets: [MY-TOKEN]\n", ["secrets[0]", "NAME=VARIABLE"]),
    "secret over a variable": (
        RUN + "secrets: [A]\nenv: {A: 1}\n",
        ["secrets[0]", "is in env:, too"],
    ),
    "relative workdir that isn't there": (
        RUN + "workdir: eval\n",
        ["workdir", "eval", "No such file"],
    ),
    "digest without a relative workdir": (
        RUN + f"workdir_digest: {'a' * 64}\n",
        ["workdir_digest", "relative workdir"],
    ),
    "what is no digest": (
        RUN + "workdir: .\nworkdir_digest: mine\n",
        ["workdir_digest", "64 hexadecimal digits"],
    ),
    "fence too soon": (
        RUN + "when_unreachable: fence\nfence_after: 5s\n",
        ["fence_after", "must be from 10s"],
    ),
    "gang over clusters, not yet": (
        RUN + "topology: {required: any}\n",
        ["topology.required", "not yet"],
    ),
    "reserved variable": (RUN + "env: {RANK: 0}\n", ["env.RANK", "may not be set"]),
    "tasks and task fields": ("tasks:\n  - {name: a, run: ls}\nworkers: 2\n", ["workers", "tasks"]),
    "cyclic after": (
        "tasks:\n  - {name: a, run: ls, after: [b]}\n  - {name: b, run: ls, after: [a]}\n",
        ["after", "cycle"],
    ),
    "after nobody": ("tasks:\n  - {name: a, run: ls, after: [z]}\n", ["after[0]", "no task"]),
    "trainer key": (
        TRAINER.replace("max_steps", "max_step"),
        ["trainer.max_step", "Did you mean max_steps?"],
    ),
    "trainer model key": (
        TRAINER.replace("init: /m", "model: {hidden_sise: 64}"),
        ["trainer.model.hidden_sise", "Did you mean hidden_size?"],
    ),
    "batch by device": (
        TRAINER + "  per_device_train_batch_size: 4\n",
        ["per_device_train_batch_size", "global_batch_size"],
    ),
    "never fits": (RUN + "workers: 5\n", ["can never start", "4"]),
    "too deep": ("labels: " + "{a: " * 40 + "1" + "}" * 40 + "\n" + RUN, ["deep"]),
    "too large": ("name: a\n" + "# padding\n" * 30_000 + RUN, ["bad.yaml", "larger than"]),
}


def test_bad_jobs_are_refused_with_place_path_and_remedy(system):
    """One daemon for all of them: none may disturb it."""
    assert len(BAD_JOBS) >= 30
    wrong = []
    (system.folder / "trainer.yaml").write_text("queue: research\n" + BAD_JOBS["trainer key"][0])
    wait_for(
        "the agents to tell the trainer's schema",
        lambda: (
            system.run(
                ["submit", system.folder / "trainer.yaml", "--preview-only"], check=False
            ).returncode
            == 2
        ),
        30,
    )
    for name, (text, wanted) in BAD_JOBS.items():
        path = system.folder / "bad.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        done = system.run(
            ["submit", path, "-y", "--queue", "research"]
            if name not in ("unknown queue",)
            else ["submit", path, "-y"],
            check=False,
        )
        if done.returncode != 2:
            wrong.append(f"{name}: exit {done.returncode}: {done.stdout}{done.stderr}")
        wrong += [
            f"{name}: no {part!r} in:\n{done.stderr}" for part in wanted if part not in done.stderr
        ]
        if "\ufffd" in done.stderr:
            wrong.append(f"{name}: bytes that aren't text reach the terminal: {done.stderr}")
        if done.stdout:
            wrong.append(f"{name}: stdout isn't empty: {done.stdout}")
    assert not wrong, "\n".join(wrong)
    assert system.jobs() == [], "something was stored"


# What the trainer refuses at its start, whatever its devices: (keys beside TRAINER's, workers, what both say)
EXCLUDE_EACH_OTHER = [
    ({"zero_stage": 0, "shard_size": 1}, 1, "trainer.shard_size: is for zero_stage"),
    ({"memory_per_rank": "8GiB"}, 1, "trainer.memory_per_rank: is for parallel: auto"),
    ({"masters": "split"}, 1, "trainer.masters: "),
    ({"dtype": "bf16", "masters": "split", "offload": "optimizer"}, 1, "trainer.masters: split"),
    ({"gradient_dtype": "bf16"}, 1, "trainer.gradient_dtype: "),
    ({"offload": "parameters"}, 1, "trainer.offload: parameters"),
    ({"dpo": {}, "parallel": {"cp": 2}}, 2, "trainer.parallel.cp: "),
    (
        {"router_aux_loss": "batch", "parallel": "auto"},
        1,
        "router_aux_loss: batch is over all rows",
    ),
    (
        {"parallel": {"pp": 2, "pipeline": "zero_bubble"}, "deterministic": True},
        2,
        "trainer.parallel.pipeline: zero_bubble ",
    ),
    (
        {
            "deterministic": "elastic",
            "micro_batch_size": 1,
            "dtype": "bf16",
            "gradient_dtype": "bf16",
        },
        1,
        "trainer.gradient_dtype: bf16 ",
    ),
    (
        {"lora": {"rank": 4}, "quantize": {"type": "nf4"}, "matmul": "fp8"},
        1,
        "trainer.matmul: fp8 ",
    ),
    ({"micro_batch_size": 9}, 1, "trainer.micro_batch_size: 9 is above global_batch_size"),
    ({"warmup_steps": 11}, 1, "trainer.warmup_steps: 11 "),
]


def test_keys_that_the_trainer_would_refuse_are_refused_before(system):
    wrong = []
    for keys, workers, wanted in EXCLUDE_EACH_OTHER:
        lines = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in keys.items())
        path = system.folder / "bad.yaml"
        path.write_text(f"queue: research\nworkers: {workers}\n" + TRAINER + lines)
        done = system.run(["submit", path, "-y"], check=False)
        config = system.folder / "trainer.json"
        config.write_text(
            json.dumps(
                {"init": "/m", "data": "t", "max_length": 64, "global_batch_size": 8}
                | {"max_steps": 10, "learning_rate": 1e-3}
                | keys
            )
        )
        words = ["estimate", "--config", config, "--ranks", str(workers)]
        trainers = subprocess.run(
            [system.bin_dir / "muster-trainer", *words], capture_output=True, text=True
        )
        for who, code, said in (
            ("submit", done.returncode, done.stderr),
            ("the trainer", trainers.returncode, trainers.stderr),
        ):
            if code != 2 or wanted not in said:
                wrong.append(f"{keys}: {who}: exit {code}, no {wanted!r} in:\n{said}")
    assert not wrong, "\n".join(wrong)
    assert system.jobs() == []


def test_all_problems_are_told_at_once(system):
    path = system.folder / "bad.yaml"
    path.write_text(
        "queue: research\nworkers: 0\npriority: 101\nresources: {gpus: 1, gpu_types: [H100]}\nrun: ls\nfoo: 1\n"
    )
    said = system.run(["submit", path, "-y"], check=False).stderr
    assert "4 problems" in said and all(
        part in said for part in ("workers", "priority", "H100", "foo", "bad.yaml")
    )


def test_a_missing_file_is_told_by_name(system):
    done = system.run(["submit", "/nowhere/job.yaml", "-y"], check=False)
    assert done.returncode == 2 and "/nowhere/job.yaml" in done.stderr


def test_guarantees_that_do_not_nest_are_refused_and_change_nothing(system):
    before = system.json("queue", "list")
    for text, wanted in (
        (
            "queues:\n  - name: a\n    quota: {cpu-slot: {guarantee: 2}}\n    queues:\n      - {name: b, quota: {cpu-slot: {guarantee: 3}}}\n",
            ["guarantee"],
        ),
        ("queues:\n  - {name: a, quota: {cpu-slot: {guarantee: 9}}}\n", ["guarantee", "9"]),
        (
            "queues:\n  - {name: a, quota: {cpu-slot: {guarantee: 2, limit: 1}}}\n",
            ["guarantee", "limit"],
        ),
        ("queues:\n  - {name: a, quota: {nothing: {guarantee: 1}}}\n", ["nothing"]),
    ):
        path = system.folder / "queues.yaml"
        path.write_text(text)
        done = system.run(["queue", "apply", path], check=False)
        assert done.returncode == 2, f"{text}\n{done.stdout}{done.stderr}"
        assert all(part in done.stderr for part in wanted), done.stderr
    assert system.json("queue", "list") == before


def test_a_queue_change_for_another_version_is_refused(system):
    path = system.folder / "etc" / "queues.yaml"
    assert system.run(["queue", "apply", path, "--if-version", "4711"], check=False).returncode == 5


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "127.0.0.1:7070", "[::]:7070", "relative.sock"])
def test_only_unix_sockets_are_served(bare, listen):
    configure(bare)
    config = bare.folder / "etc" / "musterd.yaml"
    config.write_text(config.read_text().replace(bare.server, f'"{listen}"'))
    done = subprocess.run(
        [bare.bin_dir / "musterd", "--config", config], capture_output=True, text=True, timeout=20
    )
    assert done.returncode != 0 and "unix://" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a socket to another user")
def test_another_users_daemon_is_told_from_a_dead_one(system):
    os.chown(system.socket, 12345, -1)
    system.processes[
        "musterd"
    ].kill()  # who serves nobody else closes the connection; a dead one refuses it
    done = system.run(["jobs"], check=False)
    assert done.returncode == 6 and "served by uid 12345" in done.stderr, done.stderr


def test_the_socket_and_the_store_are_the_owners_alone(system):
    assert stat.S_IMODE(os.stat(system.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(system.folder / "store").st_mode) == 0o700


def test_a_second_agent_of_the_same_name_is_refused(system):
    system.processes.pop(
        "agent-lab-h01"
    )  # goes on; `again` is another state directory under the same name
    again = system.spawn(
        "again",
        [
            system.bin_dir / "muster-agent",
            "--server",
            system.server,
            "--cluster",
            "lab",
            "--host",
            "h01",
            "--state-dir",
            system.folder / "agents" / "again",
            "--inventory",
            system.folder / "etc" / "host.yaml",
            "--single-user",
        ],
    )
    wait_for(
        "the second agent's refusal",
        lambda: (
            "h01" in system.log_tail("again")
            and any(word in system.log_tail("again").lower() for word in ("refused", "another"))
        ),
        20,
    )
    again.kill()
    assert {host["name"] for host in system.hosts() if host["state"] == "HOST_UP"} == {
        "lab/h01",
        "lab/h02",
    }


def test_a_host_that_contradicts_its_sku_counts_that_and_is_told_in_both_logs_and_shown(bare):
    configure(bare)
    inventory = bare.folder / "etc" / "host.yaml"
    inventory.write_text(inventory.read_text().replace("gpus: 2", "gpus: 5"))
    bare.start_musterd()
    bare.start_agent("lab", "h01")
    bare.wait_hosts_up({"lab/h01"})
    how = "5 devices instead of 2"
    host = bare.json("host", "show", "lab/h01")
    assert host["differs"] == how and len(host["inventory"]["devices"]) == 2
    assert how in bare.run(["host", "list"]).stdout
    wait_for(
        "both logs to say so",
        lambda: how in bare.log_tail("musterd") and how in bare.log_tail("agent-lab-h01"),
        10,
    )


def test_an_agent_of_an_unlisted_name_is_refused(system):
    system.start_agent("lab", "h99")
    wait_for(
        "the refusal",
        lambda: (
            "h99" in system.log_tail("agent-lab-h99")
            and "refused" in system.log_tail("agent-lab-h99").lower()
        ),
        20,
    )
    system.processes.pop("agent-lab-h99").kill()
    assert {host["name"] for host in system.hosts()} == {"lab/h01", "lab/h02"}


def test_rubbish_on_the_socket_ends_that_connection_and_not_the_daemon(system):
    for rubbish in (
        b"\0" * 4096,
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(system.socket))
            connection.settimeout(10)
            try:
                connection.sendall(rubbish)
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass
    assert system.run(["ping"]).returncode == 0 and len(system.hosts()) == 2
