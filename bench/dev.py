#!/usr/bin/env python3
"""Row `dev`: environments to develop in, with a real JupyterLab: who gets in, and when one is released.

    dev.py [--quick]

Jobs start on the devices that one holds. A kernel computes without a browser for three times --idle; then nothing does. Requests without the token, or with another one, come through `muster dev
open`. Beside it what Jupyter offers itself for the same (its culling of kernels and of the server), as the peer. JupyterLab is
bench/requirements-dev.txt's, in an environment that the row makes. --quick: seconds instead of minutes; without that environment a stand-in for
JupyterLab, and it says so.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from dev_environments import Way, opened
from environments import environment
from figures import BIN, at_most, figure, quantile, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import ENDED, start, task

STAND_IN = ROOT / "python" / "tests" / "stand_in_jupyter"
REQUESTS, RELEASE_BAR_S = 100, 60
HOSTED, START_BAR_S = 20, 0.3
ON = """\
name: on{count}
queue: research
on: "{holder}"
resources: {{gpus: 0.1, gpu_types: [cpu-slot], cpus: 0.1, memory: 64MiB}}
run: [/bin/sh, -c, "date +%s%N > {mark}; exec sleep 600"]
"""
PATHS = (
    "/api/status",
    "/api/kernels",
    "/api/contents",
    "/api/terminals",
    "/lab",
    "/api/sessions",
    "/files/x",
)
# Beside the kernel, on its own sockets: no server and no browser sees what it is told.
COMPUTE = """
import sys, time
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(60)
client.execute(f"end = __import__('time').time() + {sys.argv[2]}\\nwhile __import__('time').time() < end: pass")
time.sleep(1)
"""


class Laboratory:
    """The system, and a JupyterLab or its stand-in."""

    def __init__(self, system: LocalSystem, place: Path | None):
        self.system, self.place = system, place
        self.python = sys.executable if place is None else str(place / "bin" / "python")
        self.kernels = system.folder / "kernels.json"

    def up(self, name: str, idle_s: float, gpus: int = 1) -> int:
        path = str(ROOT / "python") + (f":{STAND_IN}" if self.place is None else "")
        words = ["dev", "up", "--name", name, "--queue", "research", "--python", self.python]
        words += ["--gpus", str(gpus), "--gpu-type", "cpu-slot", "--idle", f"{idle_s:g}s"]
        words += ["--env", f"PYTHONPATH={path}", "--env", f"STAND_IN_KERNELS={self.kernels}"]
        return int(self.system.run([*words, "-o", "name"]).stdout)

    def compute(self, number: int, way: Way, for_s: float) -> None:
        """A kernel is busy from now on for so long, and no client is there."""
        if self.place is None:
            busy = [{"execution_state": "busy", "last_activity": "1"}]
            self.kernels.write_text(json.dumps(busy))
            return
        status, body = way.ask("/api/kernels", way.token, "POST", "{}")
        assert status == 201, body
        kernel = json.loads(body)["id"]
        runtime = Path(self.system.job(number)["directory"]) / ".dev" / "runtime"
        self.run_kernel(runtime / f"kernel-{kernel}.json", for_s)

    def run_kernel(self, connection: Path, for_s: float) -> None:
        wait_for("the kernel", connection.exists, 60)
        words = [self.python, "-c", COMPUTE, connection, str(for_s)]
        subprocess.run(words, check=True, timeout=120)

    def rest(self) -> None:
        self.kernels.write_text("[]")


def requests_without_token(way: Way) -> bool:
    refused = 0
    for count in range(REQUESTS):
        token = (None, "", way.token[:-1], way.token[::-1])[count % 4]
        status, _ = way.ask(PATHS[count % len(PATHS)], token)
        refused += status in (302, 403)  # a page leads to the login's
    met = way.ask("/api/status", way.token)[0] == 200
    held = refused == REQUESTS and met
    return figure("requests without the token refused", refused, f"of {REQUESTS}", REQUESTS, held)


def busy_and_idle(laboratory: Laboratory, idle_s: float) -> bool:
    system = laboratory.system
    number = laboratory.up("busy", idle_s)
    with opened(system, "busy") as way:
        ok = requests_without_token(way)
        began = time.monotonic()
        laboratory.compute(number, way, 3 * idle_s)
    while time.monotonic() < began + 3 * idle_s:
        time.sleep(0.2)
    there = task(system.job(number))["state"] == "TASK_RUNNING"
    ok &= figure(
        "a busy kernel without a browser, after three times --idle", there, "runs", True, there
    )
    laboratory.rest()
    rested = time.monotonic()
    job = wait_for(
        "the idle environment's end",
        lambda: (found := system.job(number))["state"] in ENDED and found,
        idle_s + 2 * RELEASE_BAR_S,
    )
    late_s = round(time.monotonic() - rested - idle_s, 1)
    held = late_s <= RELEASE_BAR_S and job["state"] == "SUCCEEDED"
    return ok & figure(
        "an idle one is released after --idle and", late_s, "s", f"<= {RELEASE_BAR_S}", held
    )


def hosted(laboratory: Laboratory) -> bool:
    """Jobs on an environment's devices: when their processes run, and what its queue is charged."""
    system = laboratory.system
    holder = laboratory.up("holder", 3600, gpus=2)
    with opened(system, "holder"):
        pass
    times = []
    for count in range(HOSTED):
        mark, file = system.folder / f"on{count}", system.folder / "on.yaml"
        file.write_text(ON.format(count=count, holder=holder, mark=mark))
        number = system.submit(file)["number"]
        wait_for(
            f"job {number} to run", lambda: mark.exists() and mark.read_text().strip(), 20, 0.005
        )
        times.append(int(mark.read_text()) / 1e9 - int(system.job(number)["submit_ns"]) / 1e9)
    p99_s = round(quantile(times, 0.99), 3)
    ok = at_most(f"{HOSTED} jobs on its devices start, p99", p99_s, "s", START_BAR_S)
    queue = next(one for one in system.json("queue", "list")["queues"] if one["path"] == "research")
    used = sum(int(use["used_milli"]) for use in queue["use"] if use["flavour"] == "cpu-slot")
    ok &= figure("its queue is charged for", used / 1000, "devices", 2, used == 2000)
    system.run(["dev", "stop", "holder"])
    wait_for("all of them to end", lambda: not system.json("jobs")["jobs"], 60)
    return ok


def peer(laboratory: Laboratory, idle_s: float) -> None:
    """Jupyter's own: kernels that are idle are culled, and a server without kernels ends. Told, not judged."""
    if laboratory.place is None:
        print("no peer: it needs JupyterLab", flush=True)
        return
    folder = laboratory.system.folder / "peer"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [laboratory.python, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1"]
    words += [f"--ServerApp.port={port}", f"--MappingKernelManager.cull_idle_timeout={idle_s:g}"]
    words += ["--MappingKernelManager.cull_interval=1", f"--ServerApp.root_dir={folder}"]
    words += [f"--ServerApp.shutdown_no_activity_timeout={idle_s:g}"]
    words += ["--allow-root"] if os.geteuid() == 0 else []
    token = "peer"
    environment_of = os.environ | {"JUPYTER_TOKEN": token, "JUPYTER_RUNTIME_DIR": str(folder)}
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env=environment_of)
    way = Way(f"http://127.0.0.1:{port}/?token={token}")
    try:
        wait_for("the peer", lambda: answers(way), 60)
        kernel = json.loads(way.ask("/api/kernels", token, "POST", "{}")[1])["id"]
        began = time.monotonic()
        laboratory.run_kernel(folder / f"kernel-{kernel}.json", 3 * idle_s)
        while server.poll() is None and time.monotonic() < began + 3 * idle_s:
            time.sleep(0.2)
        kept = server.poll() is None and answers(way, f"/api/kernels/{kernel}")
        rested = time.monotonic()
        while server.poll() is None and time.monotonic() < rested + idle_s + 2 * RELEASE_BAR_S:
            time.sleep(0.2)
        late = f"{time.monotonic() - rested - idle_s:.1f} s after --idle"
        ended = late if server.poll() is not None else "not within two minutes"
        figure("Jupyter's own culling", ended, f"busy kernel kept: {kept}")
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
        server.wait()


def answers(way: Way, path: str = "/api/status") -> bool:
    try:
        return way.ask(path, way.token)[0] == 200
    except OSError:
        return False


def main() -> int:
    quick = "--quick" in sys.argv
    place = environment("dev", "bench/requirements-dev.txt", may_make=not quick)
    if place is None:
        print(
            "with a stand-in for JupyterLab: its environment is made by the whole row", flush=True
        )
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            start(system)
            laboratory = Laboratory(system, place)
            idle_s = 4.0 if quick else 60.0
            ok = hosted(laboratory)
            ok &= busy_and_idle(laboratory, idle_s)
            peer(laboratory, idle_s)
        except Failed as error:
            return say_failed(error)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
