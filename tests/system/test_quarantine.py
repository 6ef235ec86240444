"""A device that ends blame again and again gets no more work until somebody releases it; a host that can't be reached is switched off."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from local_system import wait_for
from small_system import (
    configure,
    let_go,
    marks,
    prepare_tokens,
    rank_pid,
    start,
    submit,
    submit_trainer,
    submit_waiting,
    task,
    wait_ended,
    wait_started,
    waiting_job,
)

ONE_QUEUE = """queues:
  - {name: research, submit: ["*"]}
"""
BROKEN = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


GPUS = "resources: {gpus: 1, gpu_types: [h100-80g], cpus: 0.1, memory: 1MiB}"


def fails_once(name: str) -> str:
    """Ends by its device's fault in its first attempt."""
    return (
        f"name: {name}\nqueue: research\n{GPUS}\nrun: |\n  [ $MUSTER_ATTEMPT -ge 2 ] && exit 0\n"
        f"  echo '{BROKEN}' >&2\n  exit 1\n"
    )


def driver(system) -> Path:
    """The devices that stand in for real ones, a line each; what isn't there doesn't answer."""
    return system.folder / "nvml" / "devices"


def start_gpus(system, cluster: str) -> None:
    """Host lab/h01 with two devices that its driver, a stand-in, says to be there: no declared slots."""
    configure(system, ONE_QUEUE, hosts=("h01",), cluster=cluster)
    clusters = system.folder / "etc" / "clusters.yaml"
    text = clusters.read_text().replace("flavour: cpu-slot", "flavour: h100-80g")
    clusters.write_text(text.replace(", declared: true", ""))
    driver(system).parent.mkdir()
    driver(system).write_text(
        "".join(f"NVIDIA H100 80GB HBM3|GPU-{d}|85520809984\n" for d in range(2))
    )
    system.start_musterd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_NVML", str(driver(system).parent))
        patch.setenv("LD_LIBRARY_PATH", str(system.bin_dir.parent / "fake_nvml"))
        system.start_agent("lab", "h01", inventory="")
    system.wait_hosts_up({"lab/h01"})


def host(system, name: str) -> dict:
    return next(row for row in system.hosts() if row["name"] == name)


def quarantined(system, name: str) -> list[int]:
    return [
        row.get("device", 0)
        for row in host(system, name).get("quarantines", [])
        if not row.get("withheld")
    ]


def test_a_device_that_two_jobs_blame_gets_no_work_until_it_is_released(bare):
    start_gpus(bare, "quarantine: {max_percent: 50}")
    text = waiting_job(bare, "beside")
    beside = submit(
        bare, text.replace("resources: {gpus: 1, gpu_types: [cpu-slot]}", GPUS), "beside"
    )
    other = (
        task(bare.job(beside))["attempts"][0]["placements"][0].get("devices", [0])[0]
        if wait_started(bare, "beside", 1)
        else None
    )
    bad = 1 - other
    first = wait_ended(bare, submit(bare, fails_once("first"), "first"))
    assert [a["cause"] for a in task(first)["attempts"]] == [
        "DEVICE_FAILURE",
        "DONE",
    ] and quarantined(bare, "lab/h01") == []
    second = submit(bare, fails_once("second"), "second")
    wait_for("the device to be taken out", lambda: quarantined(bare, "lab/h01") == [bad], 20)
    waits = task(bare.job(second))
    assert len(waits["attempts"]) == 1 and waits["verdict"]["text"]

    shown = bare.run(["host", "show", "lab/h01"]).stdout
    assert (
        "in quarantine" in shown
        and "uncorrectable ECC" in shown
        and f"job {second}" in shown
        and f"muster host release lab/h01 {bad}" in shown
    )
    assert "in quarantine" in bare.run(["host", "list"]).stdout
    wait_for(
        "the log to say so", lambda: "taken out of placement" in bare.log_tail("musterd", 200), 10
    )
    # It outlives musterd, and what runs beside it goes on.
    bare.processes["musterd"].send_signal(signal.SIGKILL)
    bare.processes["musterd"].wait()
    bare.start_musterd()
    bare.wait_hosts_up({"lab/h01"})
    assert quarantined(bare, "lab/h01") == [bad] and len(marks(bare, "beside")) == 1

    assert bare.run(["host", "release", "lab/h01", other], check=False).returncode != 0, (
        "that one is not in quarantine"
    )
    bare.run(["host", "release", "lab/h01", bad])
    assert wait_ended(bare, second)["state"] == "SUCCEEDED" and quarantined(bare, "lab/h01") == []
    let_go(bare, "beside")
    assert wait_ended(bare, beside)["state"] == "SUCCEEDED"
    for check in ("verify", "replay"):
        bare.run(["admin", check, "--config", bare.folder / "etc" / "musterd.yaml"])


def test_one_broken_job_takes_no_device_out(bare):
    start_gpus(bare, "quarantine: {max_percent: 100}")
    text = "retry_faults_for: 3s\n" + fails_once("broken").replace("-ge 2", "-ge 99")
    assert wait_ended(bare, submit(bare, text), timeout_s=40)["state"] == "FAILED"
    assert quarantined(bare, "lab/h01") == [] and len(host(bare, "lab/h01")["blames"]) == 1


def test_a_quarantine_ends_by_time_only_once_its_host_passes_the_check(bare):
    check = bare.folder / "check-gpus"
    check.write_text(
        f"#!/bin/sh\necho $1 >> {bare.folder}/checked\n"
        f"[ -e {bare.folder}/repaired ] || {{ echo memory test failed >&2; exit 3; }}\n"
    )
    check.chmod(0o755)
    start_gpus(
        bare,
        f"quarantine: {{max_percent: 100, device_blames: 1, release_after: 2s}}\nhost_check: [{check}, '{{device}}']",
    )
    wait_ended(bare, submit(bare, fails_once("first"), "first"))
    bad = quarantined(bare, "lab/h01")
    assert len(bad) == 1
    wait_for(
        "the check to fail",
        lambda: "memory test failed" in bare.run(["host", "show", "lab/h01"]).stdout,
        90,
    )
    assert quarantined(bare, "lab/h01") == bad, "it lasts on"
    assert (bare.folder / "checked").read_text().split() == [str(bad[0])]
    bare.run(["host", "release", "lab/h01"])
    assert quarantined(bare, "lab/h01") == [], "an operator's word needs no check"


def test_a_rank_that_is_slower_than_its_gang_is_named(bare):
    start(bare)
    (bare.folder / "steps.py").write_text(
        """
import json, os, socket, time
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
rank, step = int(os.environ["RANK"]), 0
while not os.path.exists("GO"):   # all take as long; one computes for most of it
    line.sendto(json.dumps({"rank": rank, "step": step, "step_time_s": 0.2, "own_time_s": 0.16 if rank == 2 else 0.1}).encode(), os.environ["MUSTER_PROGRESS_SOCKET"])
    step += 1
    time.sleep(0.05)
""".replace("GO", str(bare.folder / "slow.go"))
    )
    text = f"""name: slow
queue: research
workers: 4
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 1s
run: python3 {bare.folder}/steps.py
"""
    number = submit(bare, text, "slow")
    row = wait_for(
        "the slow rank to be named",
        lambda: task(bare.job(number))["attempts"][0].get("stragglers"),
        30,
    )
    assert [(r["rank"], r["permille"]) for r in row] == [(2, 1600)]
    shown = " ".join(bare.run(["show", number]).stdout.split())
    assert f"rank 2 on {row[0]['host']}" in shown and "1.6 times as slow" in shown
    blames = [b for h in bare.hosts() for b in h.get("blames", [])]
    assert [(b["kind"], b["job"]) for b in blames] == [("BLAME_SLOW", str(number))] or [
        (b["kind"], int(b["job"])) for b in blames
    ] == [("BLAME_SLOW", number)]
    let_go(bare, "slow")
    assert wait_ended(bare, number)["state"] == "SUCCEEDED"


def test_a_trainers_rank_that_is_slowed_is_named(bare):
    """muster-trainer's ranks tell their own time; SIGSTOP slows one of them down."""
    tokens = prepare_tokens(bare, __file__)
    start(bare)
    path = bare.folder / "slowed.yaml"
    path.write_text(f"""name: slowed
queue: research
workers: 3
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 5s
trainer:
  model: {{model_type: llama, vocab_size: 259, hidden_size: 64, intermediate_size: 160, num_hidden_layers: 2, num_attention_heads: 4,
          num_key_value_heads: 2, max_position_embeddings: 64}}
  data: {tokens}
  max_length: 32
  global_batch_size: 12
  max_steps: 1000000
  learning_rate: 1e-4
  threads: 1
  log_interval: 50
""")
    number = submit_trainer(bare, path)
    wait_for(
        "its first steps",
        lambda: int((task(bare.job(number)).get("progress") or {}).get("step", 0)) > 10,
        60,
    )
    victim = rank_pid(bare, number, 2)
    named = threading.Event()

    def slow_it_down():
        while not named.is_set():
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.018)  # not a condition: a tenth of its speed, whatever it does
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.002)

    slowing = threading.Thread(target=slow_it_down)
    slowing.start()
    try:
        row = wait_for(
            "the slow rank to be named",
            lambda: task(bare.job(number))["attempts"][0].get("stragglers"),
            120,
        )
    finally:
        named.set()
        slowing.join()
    assert [r["rank"] for r in row] == [2] and row[0]["permille"] >= 1300
    bare.run(["cancel", number])
    assert wait_ended(bare, number)["state"] == "CANCELLED"


def test_fence_command_switches_an_unreachable_host_off_and_its_work_starts_elsewhere(bare):
    # A script in place of a power switch: it fails at first, then ends what the host runs.
    power = bare.folder / "power"
    power.write_text(f"""#!/bin/bash
echo "$@" >> {bare.folder}/power.log
if [ ! -e {bare.folder}/mains ]; then echo 'no answer from the $(chassis)' >&2; exit 4; fi
kill -KILL $(cat {bare.folder}/pids)
""")
    power.chmod(0o755)
    start(
        bare,
        ONE_QUEUE,
        hosts=("h01", "h02", "h03"),
        slots=1,
        cluster=f"fence_command: [{power}, 'off;', '{{host}}.mgmt', '{{cluster}}']\nfence_timeout: 20s",
    )
    number = submit_waiting(bare, "works", more="when_unreachable: wait\n")
    wait_started(bare, "works", 1)
    where = task(bare.job(number))["attempts"][0]["placements"][0]["host"]
    (bare.folder / "pids").write_text(str(rank_pid(bare, number)))
    log = bare.folder / "power.log"
    agent = (
        bare.processes[f"lab-{where}"]
        if f"lab-{where}" in bare.processes
        else next(p for n, p in bare.processes.items() if where in n)
    )
    os.kill(agent.pid, signal.SIGSTOP)  # as if its network were gone: what it runs goes on
    wait_for("the command to be tried", log.exists, 30)
    failed = wait_for(
        "its failure to be told",
        lambda: (
            (job := task(bare.job(number)))
            .get("verdict", {})
            .get("text", "")
            .count("no answer from the $(chassis)")
            and job
        ),
        10,
    )
    assert "fence_command" in failed["verdict"]["text"] and len(failed["attempts"]) == 1
    assert host(bare, f"lab/{where}")["fence_detail"].startswith("exit 4")
    (bare.folder / "mains").touch()
    wait_started(bare, "works", 2, timeout_s=40)
    assert {line for line in log.read_text().splitlines()} == {f"off; {where}.mgmt lab"}
    assert host(bare, f"lab/{where}")["confirmed_off_by"] == "fence_command"
    job = task(bare.job(number))
    assert [a["placements"][0]["host"] == where for a in job["attempts"]] == [
        True,
        False,
    ] and job.get("restarts_used", 0) == 0
    tries = len(log.read_text().splitlines())
    let_go(bare, "works")
    os.kill(agent.pid, signal.SIGCONT)
    assert wait_ended(bare, number)["state"] == "SUCCEEDED"
    wait_for(
        "the host to be back",
        lambda: (
            "confirmed_off_by" not in host(bare, f"lab/{where}")
            or not host(bare, f"lab/{where}")["confirmed_off_by"]
        ),
        20,
    )
    assert len(log.read_text().splitlines()) == tries, "a host that speaks is not switched off"
