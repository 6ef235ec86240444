"""Agents of a release that doesn't know of secrets, packed directories or images: they get no job that has some, and the job says why."""

import json
import subprocess

import pytest
from local_system import wait_for
from small_system import SCHEDULING, configure, submit, task

SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: sleep 30\n"
QUEUES = 'queues: [{name: research, submit: ["*"]}]\n'
LISTENS_MS = 6_000
PATIENT = SCHEDULING.replace("lease: 6s, heartbeat: 1s", "lease: 60s, heartbeat: 20s")


@pytest.fixture
def keeping(bare):
    """A musterd that keeps secrets, whose host h01 is played by the test."""
    configure(bare, QUEUES, hosts=("h01",), scheduling=PATIENT)
    with open(bare.folder / "etc" / "musterd.yaml", "a") as config:
        config.write(f"master_key: {bare.folder}/etc/master.key\n")
    bare.start_musterd()
    bare.run(["secret", "set", "TOKEN"], text="value")
    return bare


def listen(system, **announced: bool) -> subprocess.Popen:
    """An agent of h01 that says hello, with what is announced, and then listens."""
    devices = [{"index": n, "uuid": f"d{n}", "healthy": True} for n in range(2)]
    inventory = {
        "flavour": "cpu-slot",
        "declared": True,
        "devices": devices,
        "address": "127.0.0.1",
    }
    inventory |= {"cpusMilli": "4000", "memoryBytes": str(1 << 33)}
    hello = {
        "protocolVersion": 1,
        "cluster": "lab",
        "host": "h01",
        "stateId": "5" * 32,
        "bootId": "b",
    }
    request = {"hello": hello | {"inventory": inventory | announced}}
    agent = subprocess.Popen(
        [system.bin_dir / "call_rpcs", system.server, str(LISTENS_MS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    agent.stdin.write(f"AgentService/Connect\t{json.dumps(request)}\n")
    agent.stdin.flush()
    system.wait_hosts_up({"lab/h01"})
    return agent


def told_to_prepare(agent: subprocess.Popen) -> list[str]:
    """Jobs by name."""
    out, _ = agent.communicate(timeout=60)
    answers = json.loads(out)["answers"]
    return [answer["prepare"]["jobName"] for answer in answers if "prepare" in answer]


def test_an_agent_that_announces_nothing_gets_no_job_with_secrets(keeping):
    agent = listen(keeping)
    secret = submit(keeping, "name: secret\nsecrets: [TOKEN]\n" + SLOT)
    submit(keeping, "name: plain\n" + SLOT)
    why = (
        "no host can take it: lab/h01 has a muster-agent that doesn't know secrets: upgrade "
        "muster-agent there"
    )
    wait_for("the reason", lambda: why in task(keeping.job(secret))["verdict"]["text"], 5)
    assert why in keeping.run(["explain", str(secret)]).stdout.replace("\n", " ")
    assert told_to_prepare(agent) == ["plain"], "what needs nothing of it does start there"
    # The same host with an agent that knows.
    assert "secret" in told_to_prepare(listen(keeping, givesSecrets=True))
