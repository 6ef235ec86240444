#!/usr/bin/env python3
"""Row `track`: a job's reports in a real MLflow server that is stopped, and after preemptions.

    track.py [--quick]

A tracked and an untracked training run side by side while the server is stopped (SIGSTOP) for a minute: what a step costs, and what arrives. The same
training with transformers' own MLflow callback is the peer. Then a training is preempted five times, and its run compared with an undisturbed one's.
The server is bench/requirements-track.txt's, in an environment that the row makes. --quick: stopped for 8 s, two preemptions; without that environment a
stand-in, and it says so.
"""

import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]
sys.path.append(str(ROOT / "exporter" / "tests"))

from borrowers import submit
from environments import environment, site_of
from figures import BIN, figure, none, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import ENDED, start
from stand_in_mlflow import StandIn

PYTHON = os.environ.get("MUSTER_PYTHON", sys.executable)
QUEUES = "queues: [{name: research, quota: {cpu-slot: {guarantee: 0}}, submit: ['*']}, {name: prod, quota: {cpu-slot: {guarantee: 2}}, submit: ['*']}]\n"
JOB = """\
name: {name}
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot], cpus: 1}}
{more}run: exec {python} {root}/bench/track_training.py --steps {steps} --times {folder}/{name}.times
"""
STEP_S = 0.0046  # about what one takes
TAKER = "name: taker\nqueue: prod\nworkers: 2\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: sleep 0.5\n"


# ---- the server ----


class Server:
    """MLflow's own, with its runs in SQLite."""

    def __init__(self, place: Path, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.name = f"http://127.0.0.1:{port}", "mlflow server"
        self.site = site_of(place)
        with open(folder / "logs" / "mlflow.log", "wb") as log:
            self._process = subprocess.Popen(
                [place / "bin" / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
                + ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
                + ["--artifacts-destination", folder / "artifacts"],
                stdout=log,
                stderr=log,
                cwd=folder,
                env=os.environ
                | {"MLFLOW_DISABLE_TELEMETRY": "true", "PATH": f"{place}/bin:{os.environ['PATH']}"},
                start_new_session=True,
            )
        wait_for("MLflow's first answer", self._answers, 90, 0.2)

    def _answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=2).status == 200
        except OSError:
            return False

    def halt(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.go_on()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, path: str, body: dict | None = None, **query) -> dict:
        url = f"{self.url}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))

    def runs(self, name: str) -> list[tuple[str, str]]:
        """(run, status) of those that aren't deleted, in the experiment of that name."""
        try:
            found = self._ask("experiments/get-by-name", experiment_name=name)
        except urllib.error.HTTPError:
            return []
        asked = {"experiment_ids": [found["experiment"]["experiment_id"]]}
        runs = self._ask("runs/search", asked).get("runs", [])
        return [(run["info"]["run_id"], run["info"]["status"]) for run in runs]

    def history(self, run: str, key: str) -> list[tuple[int, float]]:
        metrics = self._ask("metrics/get-history", run_id=run, metric_key=key).get("metrics", [])
        return [(int(metric["step"]), float(metric["value"])) for metric in metrics]


class Pretended:
    """The tests' server, where MLflow isn't installed."""

    def __init__(self):
        self._server, self.site, self.name = StandIn(), None, "a stand-in of the tests"
        self.url, self.stop = self._server.url, self._server.stop

    def halt(self) -> None:
        self._server.mode = "hang"

    def go_on(self) -> None:
        self._server.mode = "well"

    def runs(self, name: str) -> list[tuple[str, str]]:
        return [
            (run, told["status"])
            for run, told in self._server.runs.items()
            if told["active"] and told["tags"]["mlflow.runName"].startswith(f"{name}-")
        ]

    def history(self, run: str, key: str) -> list[tuple[int, float]]:
        metrics = self._server.runs[run]["metrics"]
        return [(metric["step"], metric["value"]) for metric in metrics if metric["key"] == key]


@contextmanager
def served(quick: bool, folder: Path):
    place = environment("track", "bench/requirements-track.txt", may_make=not quick)
    server = Server(place, folder) if place is not None else Pretended()
    print(f"the tracker is {server.name}", flush=True)
    try:
        yield server
    finally:
        server.stop()


# ---- the trainings ----


class Trainings:
    def __init__(self, system: LocalSystem, server):
        self.system, self.server = system, server
        config = system.folder / "etc" / "exporter.toml"
        config.write_text(f'data_dir = "{system.folder}/exporter"\npoll_s = 0.5\n')
        command = [ROOT / "exporter" / "muster-exporter", "--config", config]
        self.exporter = system.spawn("exporter", command)

    def submit(self, name: str, steps: int, tracked: bool) -> str:
        more = f"track: {{mlflow: {self.server.url}, tensorboard: true}}\n" if tracked else ""
        values = {"name": name, "steps": steps, "more": more, "python": PYTHON, "root": ROOT}
        return submit(self.system, JOB.format(folder=self.system.folder, **values))

    def await_end(self, number: str, limit_s: float) -> None:
        wait_for(f"job {number}", lambda: self.system.job(number)["state"] in ENDED, limit_s, 0.2)
        state = self.system.job(number)["state"]
        if state != "SUCCEEDED":
            raise Failed(
                f"job {number}: {state}: {self.system.run(['logs', number], check=False).stdout[-800:]}"
            )

    def times(self, name: str) -> list[tuple[float, float]]:
        """(when a step ended, what it took)."""
        path = self.system.folder / f"{name}.times"
        lines = path.read_text().splitlines() if path.exists() else []
        return [
            (float(at), float(took)) for at, took in (line.split() for line in lines if " " in line)
        ]

    def await_run(self, name: str) -> tuple[str, list[tuple[str, str]]]:
        def finished():
            runs = self.server.runs(name)
            return runs and all(status == "FINISHED" for _, status in runs) and runs

        runs = wait_for(f"the run of {name} to end", finished, 120, 0.3)
        return runs[0][0], runs


def in_tensorboard(trainings: Trainings, name: str) -> list[tuple[int, float]]:
    """(step, loss) as TensorBoard itself reads them."""
    (directory,) = (trainings.system.folder / "exporter" / "tensorboard").glob(f"*/{name}-*")
    program = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})\n"
        "events.Reload()\n"
        "print(json.dumps([(one.step, one.value) for one in events.Scalars('loss')]))\n"
    )
    python = trainings.server.site.parent.parent.parent / "bin" / "python"
    done = subprocess.run(
        [python, "-c", program, directory], capture_output=True, text=True, check=True
    )
    return [(step, value) for step, value in json.loads(done.stdout)]


def cost(ours, theirs, window: tuple[float, float]) -> float:
    """Per cent that our steps took longer, by the median of pairs of half a second in which both ran."""
    ratios, at = [], window[0]
    while at + 0.5 <= window[1]:
        both = [
            [took for ended, took in steps if at <= ended < at + 0.5] for steps in (ours, theirs)
        ]
        if min(map(len, both)) >= 10:
            ratios.append(statistics.median(both[0]) / statistics.median(both[1]))
        at += 0.5
    if not ratios:
        raise Failed("no half second in which both trainings ran")
    return 100 * (statistics.median(ratios) - 1)


def stopped_server(trainings: Trainings, halt_s: float, around_s: float) -> bool:
    server, steps = trainings.server, int((halt_s + 2 * around_s) / STEP_S)
    numbers = [trainings.submit(name, steps, name == "tracked") for name in ("tracked", "plain")]
    wait_for("both to train", lambda: all(map(trainings.times, ("tracked", "plain"))), 60)
    time.sleep(around_s)
    wait_for("its run", lambda: server.runs("tracked"), 30)
    halted_s = time.time()
    server.halt()
    time.sleep(halt_s)
    behind = len(trainings.times("tracked"))
    server.go_on()
    window = (halted_s, halted_s + halt_s)
    for number in numbers:
        trainings.await_end(number, 60 + 4 * halt_s)
    ours, theirs = trainings.times("tracked"), trainings.times("plain")
    print(f"{behind} of {steps} steps when the server went on after {halt_s:g} s", flush=True)
    ok = True
    for what, span in (
        ("while the server is stopped", window),
        ("over all", (ours[0][0], min(ours[-1][0], theirs[-1][0]))),
    ):
        more = cost(ours, theirs, span)
        ok &= figure(f"step time {what}, tracked against not", round(more, 2), "%", 1, more <= 1)
    run, runs = trainings.await_run("tracked")
    points = trainings.server.history(run, "loss")
    missing = steps - len({step for step, _ in points})
    ok &= none("points missing", missing, f"of {steps}")
    return ok & figure("runs of the job", len(runs), "", 1, len(runs) == 1)


def peer(trainings: Trainings, halt_s: float) -> None:
    """transformers' callback with the same server, stopped for as long; told, not judged."""
    if trainings.server.site is None:
        print("no peer: it needs MLflow", flush=True)
        return
    steps = int(20 * halt_s / STEP_S)
    words = ["--steps", str(steps), "--times", trainings.system.folder / "peer.times"]
    more = ["--mlflow", trainings.server.url, "--site", trainings.server.site]
    program = [PYTHON, ROOT / "bench" / "track_training.py", *words, *more]
    with open(trainings.system.folder / "logs" / "peer.log", "wb") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log, cwd=trainings.system.folder)
    try:
        wait_for("the peer to train", lambda: len(trainings.times("peer")) > 50, 60)
        before = statistics.median(took for _, took in trainings.times("peer"))
        count = len(trainings.times("peer"))
        trainings.server.halt()
        time.sleep(halt_s)
        trainings.server.go_on()
        done = len(trainings.times("peer")) - count
        plain = statistics.median(took for _, took in trainings.times("plain"))
        figure(
            f"steps of transformers' MLflowCallback in {halt_s:g} s with the server stopped",
            done,
            f"untracked: {halt_s / plain:.0f}; its step with the server well: {1000 * before:.1f} ms against {1000 * plain:.1f}",
        )
    finally:
        process.kill()
        process.wait()


def preempted(trainings: Trainings, times: int) -> bool:
    steps = 250 * (times + 1)
    undisturbed = trainings.submit("undisturbed", steps, True)
    trainings.await_end(undisturbed, 120)
    number = trainings.submit("disturbed", steps, True)
    for count in range(times):
        enough = 150 * (count + 1)
        wait_for("steps", lambda: len(trainings.times("disturbed")) > enough, 60)
        trainings.await_end(submit(trainings.system, TAKER), 60)
    trainings.await_end(number, 120)
    attempts = trainings.system.job(number)["tasks"][0]["attempts"]
    preemptions = sum(attempt["cause"] == "PREEMPTION" for attempt in attempts)
    ok = figure("preemptions", preemptions, "", times, preemptions == times)
    found = {}
    for name in ("undisturbed", "disturbed"):
        run, runs = trainings.await_run(name)
        ok &= figure(f"runs of the job {name}", len(runs), "", 1, len(runs) == 1)
        found[name] = {key: trainings.server.history(run, key) for key in ("loss", "half")}
    points = [(key, point) for key in found["disturbed"] for point in found["disturbed"][key]]
    doubled = len(points) - len({(key, step) for key, (step, _) in points})
    ok &= none("(key, step) that are doubled", doubled, f"of {len(points)}")
    if trainings.server.site is not None:
        seen = sorted(in_tensorboard(trainings, "disturbed"))
        as_float = [
            (step, struct.unpack("f", struct.pack("f", loss))[0])
            for step, loss in found["undisturbed"]["loss"]
        ]
        held = seen == sorted(as_float)
        ok &= figure("TensorBoard reads the same", held, f"{len(seen)} points", True, held)
    same = all(
        sorted(found["undisturbed"][k]) == sorted(found["disturbed"][k]) for k in found["disturbed"]
    )
    whole = len(points) == 2 * steps
    return ok & figure("values as of the undisturbed run", same and whole, "", True, same and whole)


def main() -> int:
    quick = "--quick" in sys.argv
    halt_s, around_s, times = (8.0, 3.0, 2) if quick else (60.0, 15.0, 5)
    with ExitStack() as stack:
        folder = stack.enter_context(system_folder())
        system = LocalSystem(folder, BIN)
        try:
            server = stack.enter_context(served(quick, folder))
            start(system, QUEUES, hosts=("h01",))
            trainings = Trainings(system, server)
            stack.callback(trainings.exporter.kill)
            ok = stopped_server(trainings, halt_s, around_s)
            peer(trainings, halt_s)
            ok &= preempted(trainings, times)
        except Failed as error:
            return say_failed(error)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
