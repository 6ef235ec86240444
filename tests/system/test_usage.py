"""What a job used: a program that takes a known amount of memory and CPU time, told while it runs and after its end, whoever is started anew meanwhile."""

import json
import signal
from pathlib import Path

from local_system import wait_for
from small_system import submit, task, wait_ended

MIB = 1 << 20
MEMORY_MIB, CPU_SECONDS = 300, 2
# Takes its memory and its CPU time, says so, and waits until it may end.
PROGRAM = (
    f"import os, time; kept = bytearray(os.urandom(1)) * ({MEMORY_MIB} << 20)\n"
    f"while time.process_time() < {CPU_SECONDS}: pass\n"
    "folder = os.environ['MUSTER_JOB_DIR']; open(folder + '/took', 'w').close()\n"
    "while not os.path.exists(folder + '/go'): time.sleep(0.05)\n"
)
JOB = f"""\
name: takes
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot], memory: 1GiB, cpus: 1}}
run: [/usr/bin/python3, -c, {json.dumps(PROGRAM)}]
"""


def kill(system, name: str) -> None:
    process = system.processes.pop(name)
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def usage(system, number: int) -> dict:
    attempts = task(system.job(number))["attempts"]
    return attempts[0].get("usage", {}) if attempts else {}


def check(used: dict) -> None:
    assert MEMORY_MIB * MIB <= used["memory_peak_bytes"] <= (MEMORY_MIB + 100) * MIB, used
    assert 0.9 * CPU_SECONDS <= used["cpu_us"] / 1e6 <= CPU_SECONDS + 2, used
    assert "gpus" not in used, "declared devices do nothing"


def test_what_a_job_used_is_told_while_it_runs_and_outlives_restarts_of_all(system):
    number = submit(system, JOB)
    folder = Path(system.job(number)["directory"])
    wait_for("the program to take its memory", (folder / "took").exists, 60)
    # A host tells once a minute at most; a musterd that has been started anew hears it at once.
    kill(system, "musterd")
    system.start_musterd()
    wait_for(
        "its host's word",
        lambda: usage(system, number).get("memory_peak_bytes", 0) >= MEMORY_MIB * MIB,
        60,
    )
    for host in ("h01", "h02"):
        kill(system, f"agent-lab-{host}")
        system.start_agent("lab", host)
    (folder / "go").touch()
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    told = usage(system, number)
    check(told)
    kill(system, "musterd")
    system.start_musterd()
    assert usage(system, number) == told, "the store has it"
    listed = system.json("history")["jobs"]
    assert [task(job)["attempts"][0]["usage"] for job in listed] == [told]
    shown = system.run(["show", number]).stdout
    assert "PEAK MEMORY" in shown and "advice" not in shown, shown
