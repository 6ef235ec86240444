"""What the demo shows, in order. Every event is triggered by the training's steps and every figure is read from the
system: jobs, attempts and the ledger as `muster … -o json` tells them, losses from the job's own logs."""

import json
import os
import signal
import string
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from local_system import Failed, LocalSystem, now_ns, wait_for
from reading import Reading, assert_that, ended, started, when, where
from reference import MODEL, Reference
from screen import Screen
from timeline import timeline

LOSS_BAR = 1e-3  # against the undisturbed run, any step: other ranks sum in another order, and the steps amplify it (1e-7 seen)
EXPORT_BAR = 1e-5  # loss of the exported model by transformers against the trainer's own, one batch
PROMPT = "Permission is hereby "


@dataclass
class Row:
    name: str
    text: str
    holds: bool
    bar: str = ""


def ms(later_ns: int, earlier_ns: int) -> float:
    return max(0, later_ns - earlier_ns) / 1e6


def seconds(value_ms: float) -> str:
    return f"{value_ms / 1000:.1f} s"


class Story(Reading):
    def __init__(
        self, system: LocalSystem, reference: Reference, screen: Screen, python: Path, short: bool
    ):
        super().__init__(system, screen)
        self.reference, self.python, self.short = reference, python, short
        self.rows: list[Row] = []
        self.losses: dict[int, float] = {}
        self.marks: list[tuple[int, str]] = []  # Unix times in ns

    def tell(self) -> bool:
        """All of it; whether every row of the summary holds."""
        self.set_up()
        self.start()
        self.borrow()
        self.reclaim()
        self.spill()
        self.grow()
        self.kill_rank()
        self.kill_musterd()
        self.finish()
        self.check_loss()
        self.check_export()
        self.check_ledger()
        return self.summary()

    # ---- before the clock ----

    def set_up(self) -> None:
        screen = self.screen
        screen.line(
            "Muster demo. 2 clusters, 3 hosts, 6 slots: CPU slots stand in for GPUs (flavour cpu-slot, declared)."
        )
        screen.bar(0, "collecting this machine's own text")
        self.reference.prepare_data()
        screen.bar(0, "measuring a step")
        self.steps, step_time_s = (
            self.reference.steps_for(20, 140, 400)
            if self.short
            else self.reference.steps_for(45, 160, 600)
        )
        self.checkpoint_interval_s = 2 if self.short else 4
        began = time.monotonic()

        def on_step(step: int, steps: int) -> None:
            left_s = (time.monotonic() - began) / step * (steps - step)
            screen.bar(
                step / steps,
                f"reference run, undisturbed and without Muster (kept for next time)  {step}/{steps}"
                + (f"  about {left_s:.0f} s left" if step > 5 else ""),
            )

        self.expected, cached = self.reference.run(self.steps, on_step)
        screen.end_bar()
        screen.line(
            f"Reference run of {self.steps} steps, {1000 * step_time_s:.0f} ms each on {os.cpu_count()} cores: "
            f"{'known from an earlier demo' if cached else f'{time.monotonic() - began:.0f} s'}, loss {self.expected[1]:.2f} to {self.expected[self.steps]:.2f}."
        )

    # ---- the story ----

    def start(self) -> None:
        system = self.system
        self.screen.began = time.monotonic()
        values = {
            "server": system.server,
            "folder": str(system.folder),
            "storage": str(system.storage),
            "corpus": str(self.reference.corpus),
            "tokens": str(self.reference.tokens),
            "model": json.dumps(MODEL),
            "checkpoint_interval": f"{self.checkpoint_interval_s}s",
        }
        templates = {
            path.name: string.Template(path.read_text())
            for path in (Path(__file__).parent / "files").iterdir()
        }
        job_steps = {"tiny-llama.yaml": self.steps, "serve-tune.yaml": max(40, self.steps // 4)}
        system.configure(
            {
                name: template.substitute(values, steps=job_steps.get(name, 0))
                for name, template in templates.items()
            }
        )
        ready_s = system.start_musterd()
        for cluster, host in (("lab", "h01"), ("lab", "h02"), ("cloud", "c01")):
            system.start_agent(cluster, host)
        system.wait_hosts_up({"lab/h01", "lab/h02", "cloud/c01"})
        system.run(["queue", "apply", system.folder / "etc" / "queues.yaml"])
        # The first start of a new trainer takes seconds, on a busy machine many; until then its jobs can't be checked.
        wait_for(
            "a host to tell its trainer's schema",
            lambda: (
                system.run(
                    ["submit", system.folder / "etc" / "tiny-llama.yaml", "--preview-only"],
                    check=False,
                ).returncode
                == 0
            ),
            60,
            0.2,
        )
        hosts = system.hosts()
        assert_that(
            all(host["inventory"]["declared"] for host in hosts),
            "a host's slots aren't shown as declared",
        )
        self.screen.event(
            f"musterd answered after {ready_s:.2f} s; {len(hosts)} agents are up, queues research and prod applied"
        )
        self.screen.line(
            f"       look from another terminal:  export MUSTER_SERVER={system.server}; {system.bin_dir}/muster jobs"
        )

    def borrow(self) -> None:
        self.number = self.submit("tiny-llama.yaml")["number"]
        self.screen.event(
            f"job {self.number} tiny-llama submitted to research (guarantee 2 in lab): prepare, then train on 2 to 4 workers"
        )
        attempt = self.wait_train(
            lambda: self.running(workers=4), 60, "job 1 to train on 4 workers"
        )
        queue = next(
            one for one in self.system.json("queue", "list")["queues"] if one["path"] == "research"
        )
        use = next(one for one in queue["use"] if one["flavour"] == "cpu-slot")
        used, guaranteed = int(use["used_milli"]) // 1000, int(use["guarantee_milli"]) // 1000
        self.guaranteed = guaranteed
        self.screen.event(
            f"job {self.number} trains on {where(attempt)}: {guaranteed} guaranteed + {used - guaranteed} borrowed from prod"
        )
        self.rows.append(
            Row(
                "borrowed",
                f"job {self.number} ran on {used} slots with a guarantee of {guaranteed}",
                used == 4 and guaranteed == 2,
            )
        )

    def reclaim(self) -> None:
        self.wait_step(0.25)
        before = self.current()
        preview = self.system.json(
            "submit", self.system.folder / "etc" / "serve-tune.yaml", "--preview-only"
        )
        chosen = next((one for one in preview["candidates"] if one["chosen"]), None)
        givers = [taken["job"] for taken in chosen["takes_from"]] if chosen else []
        outcome = f" ({chosen['takes_from'][0]['outcome']})" if givers else ""
        self.screen.event(
            f"prod wants 2 slots of lab; the preview names whom they come from: job {', '.join(map(str, givers)) or 'nobody'}{outcome}"
        )
        self.second = self.submit("serve-tune.yaml")["number"]
        shrunk = self.wait_train(
            lambda: self.running(workers=2, after=before), 60, "job 1 to go on with 2 workers"
        )
        second = self.wait_train(lambda: started(self.system.job(self.second)), 60, "job 2 to run")
        waited_ms = ms(int(second["tasks"][0]["attempts"][0]["start_ns"]), int(second["submit_ns"]))
        lost = self.steps_lost(before, shrunk)
        self.shrunk = shrunk
        self.screen.event(
            f"job {self.second} serve-tune runs on {where(second['tasks'][0]['attempts'][0])} after {seconds(waited_ms)}; "
            f"job {self.number} checkpointed and goes on with 2 ranks from step {shrunk['resumed_step']}"
        )
        self.rows.append(
            Row(
                "reclaimed",
                f"prod waited {seconds(waited_ms)}; job {self.number} checkpointed, went on with 2 ranks",
                lost == 0 and givers == [self.number],
                f"{lost} steps lost",
            )
        )

    def spill(self) -> None:
        preview = self.system.json(
            "submit", self.system.folder / "etc" / "baseline.yaml", "--preview-only"
        )
        places = ", ".join(f"{one['cluster']} {when(one)}" for one in preview["candidates"])
        self.third = self.submit("baseline.yaml")["number"]
        self.screen.event(
            f"job {self.third} baseline (research, 1 worker, lab or cloud): the preview says {places}"
        )
        self.screen.event(f"explain {self.third}: {self.explain(self.third)}")
        third = self.wait_train(lambda: started(self.system.job(self.third)), 60, "job 3 to run")
        attempt = third["tasks"][0]["attempts"][0]
        waited_ms = ms(int(attempt["start_ns"]), int(third["submit_ns"]))
        self.screen.event(f"job {self.third} runs on {where(attempt)} after {seconds(waited_ms)}")
        self.rows.append(
            Row(
                "spilled",
                f"job {self.third} waited {seconds(waited_ms)} for lab, ran in {attempt['cluster']}",
                attempt["cluster"] == "cloud",
            )
        )

    def grow(self) -> None:
        third = self.wait_train(lambda: ended(self.system.job(self.third)), 90, "job 3 to end")
        said = self.system.run(["logs", self.third]).stdout.strip().splitlines()
        assert_that(
            third["state"] == "SUCCEEDED", f"job 3 ended {third['state']}: {third['detail']}"
        )
        self.screen.event(f"job {self.third} ended: {said[-1] if said else ''}")
        second = self.wait_train(lambda: ended(self.system.job(self.second)), 120, "job 2 to end")
        assert_that(
            second["state"] == "SUCCEEDED", f"job 2 ended {second['state']}: {second['detail']}"
        )
        self.screen.event(f"job {self.second} reached its last step and left lab")
        grown = self.wait_train(
            lambda: self.running(workers=4, after=self.shrunk), 60, "job 1 to grow to 4 workers"
        )
        lost = self.steps_lost(self.shrunk, grown)
        self.screen.event(
            f"job {self.number} grew from 2 to 4 ranks at step {grown['resumed_step']}"
        )
        self.rows.append(
            Row("grown", "2 → 4 ranks when prod left", lost == 0, f"{lost} steps lost")
        )

    def kill_rank(self) -> None:
        # After the growth, and once a checkpoint of this attempt lies a few steps back.
        self.wait_step(0.60)
        before = self.current()
        self.wait_train(lambda: self.steps_since_checkpoint() >= 3, 60, "steps after a checkpoint")
        pid = self.rank_pids(3)[0]
        killed_ns = now_ns()
        os.kill(pid, signal.SIGKILL)
        self.marks.append((killed_ns, "rank 3 killed"))
        self.screen.event(f"kill -9 {pid}: rank 3 of job {self.number}")
        again = self.wait_train(
            lambda: self.running(workers=4, after=before),
            60,
            "job 1 to start again after rank 3 was killed",
        )
        first = self.wait_train(lambda: self.trained(again), 60, "a step of the new attempt")
        dead = self.attempt(before["number"])
        seen_ms = ms(int(dead["stop_ns"]) or int(dead["end_ns"]), killed_ns)
        back_ms = ms(int(first["at_ns"]), killed_ns)
        lost = self.steps_lost(before, again)
        cause = dead["cause"].lower().replace("_", " ")
        self.screen.event(
            f"seen as '{cause}' after {seconds(seen_ms)}; training again after {seconds(back_ms)}, from step {again['resumed_step']}"
        )
        self.rows.append(
            Row(
                "killed",
                f"rank 3, SIGKILL: seen {seconds(seen_ms)}, training again {seconds(back_ms)}",
                dead["cause"] == "KILLED" and 0 <= lost <= self.steps // 2,
                f"{lost} steps lost",
            )
        )

    def kill_musterd(self) -> None:
        self.wait_step(0.75)
        before, jobs_before = self.current(), {job["uid"] for job in self.system.jobs()}
        pids = set(self.rank_pids())
        step_before = int(self.progress()["step"])
        musterd = self.system.processes["musterd"]
        killed_at = time.monotonic()
        self.marks.append((now_ns(), "musterd killed"))
        musterd.kill()
        musterd.wait(10)
        self.screen.event(f"kill -9 {musterd.pid}: musterd")
        self.system.start_musterd()
        back_s = time.monotonic() - killed_at
        jobs_after = {job["uid"] for job in self.system.jobs()}
        self.wait_train(
            lambda: self.read_job() and int(self.progress()["step"]) > step_before + 2,
            60,
            "progress after musterd's restart",
        )
        after = self.current()
        undisturbed = after["number"] == before["number"] and set(self.rank_pids()) == pids
        lost = len(jobs_before - jobs_after)
        self.screen.event(
            f"musterd is back after {back_s:.1f} s, {lost} jobs lost; the training {'did not notice' if undisturbed else 'WAS DISTURBED'}"
        )
        self.rows.append(
            Row(
                "restarted",
                f"musterd, SIGKILL: back in {back_s:.1f} s, {lost} jobs lost, same trainer processes",
                lost == 0 and undisturbed,
            )
        )

    def finish(self) -> None:
        job = self.wait_train(lambda: ended(self.read_job()), 180, "job 1 to end")
        assert_that(job["state"] == "SUCCEEDED", f"job 1 ended {job['state']}: {job['detail']}")
        self.directory = Path(job["directory"])
        self.screen.event(
            f"job {self.number} reached step {self.steps} and published {self.directory / 'model'}"
        )

    # ---- the checks ----

    def check_loss(self) -> None:
        found: dict[int, float] = {}
        for attempt in self.train()["attempts"]:  # a later attempt's steps are the ones that count
            found |= {step: loss for step, loss in self.log_losses(attempt["number"]).items()}
        missing = [step for step in range(1, self.steps + 1) if step not in found]
        worst = max(
            (abs(found[step] - self.expected[step]) for step in found), default=float("inf")
        )
        text = (
            f"loss against an undisturbed run: max difference {worst:.1e} over {len(found)} steps"
        )
        self.rows.append(
            Row(
                "same run",
                text,
                not missing and worst < LOSS_BAR,
                f"< {LOSS_BAR:g}" + (f", {len(missing)} steps unseen" if missing else ""),
            )
        )

    def check_export(self) -> None:
        model = self.directory / "model"
        self.screen.bar(1, "transformers loads the exported model")
        ours, ids, length = self.reference.loss_of_model(model, self.system.folder / "verify")
        command = [
            self.python,
            Path(__file__).parent / "verify_export.py",
            model,
            ids,
            length,
            PROMPT,
        ]
        try:
            done = subprocess.run(
                [str(word) for word in command],
                capture_output=True,
                text=True,
                timeout=120,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed("transformers had not loaded the exported model after 120 s") from error
        if done.returncode != 0:
            raise Failed(f"transformers could not use {model}:\n{done.stderr[-1500:]}")
        theirs = json.loads(done.stdout.strip().splitlines()[-1])
        difference = abs(theirs["loss"] - ours)
        self.continuation = theirs["text"]
        short_text = " ".join(theirs["text"].split())[:34]
        self.rows.append(
            Row(
                "export",
                f'transformers {theirs["transformers"]}: loss agrees to {difference:.0e}; "{short_text} ..."',
                difference <= EXPORT_BAR and theirs["text"].startswith(PROMPT),
                f"<= {EXPORT_BAR:.0e}",
            )
        )
        self.screen.end_bar()

    def check_ledger(self) -> None:
        ledger = self.system.json("ledger")
        capacity = int(ledger["capacity_device_us"])
        shares = {
            entry["class"]: 100 * int(entry["device_us"]) / max(1, capacity)
            for entry in ledger["entries"]
        }
        text = " · ".join(f"{name} {share:.0f}" for name, share in shares.items()) + " %"
        total = sum(int(entry["device_us"]) for entry in ledger["entries"])
        self.rows.append(
            Row(
                "slot-time",
                text,
                capacity > 0 and total == capacity and shares.get("productive", 0) > 0,
                "sums to 100",
            )
        )

    def summary(self) -> bool:
        screen = self.screen
        screen.end_bar()
        took = int(time.monotonic() - screen.began)
        screen.line()
        screen.line(
            f"Muster demo: {took // 60} m {took % 60} s, 2 clusters, 3 hosts, 6 slots (CPU stand-ins for GPUs)"
        )
        texts = [screen.shown(row.text) for row in self.rows]
        for row, text in zip(self.rows, texts):
            screen.line(
                f" {row.name:<10}  {text:<{max(map(len, texts))}}  {screen.mark(row.holds)} {row.bar}".rstrip()
            )
        screen.line(f"Who held which slot when: {self.draw_timeline()}")
        screen.line(
            f"Next: muster sandbox (4,096 simulated GPUs to try every command on), muster up (this machine); both in {self.system.bin_dir}"
        )
        missed = [row.name for row in self.rows if not row.holds]
        if missed:
            screen.line(f"Missed: {', '.join(missed)}")
        return not missed

    def draw_timeline(self) -> Path:
        jobs = [self.system.job(number) for number in (self.number, self.second, self.third)]
        slots = {host["name"]: len(host["inventory"]["devices"]) for host in self.system.hosts()}
        path = self.reference.cache / "timeline.svg"
        path.write_text(timeline(jobs, slots, {self.number: self.guaranteed}, self.marks))
        return path

    def say_how_to_look_around(self) -> None:
        self.screen.line("It keeps running. Look around:")
        self.screen.line(
            f"  export MUSTER_SERVER={self.system.server} PATH={self.system.bin_dir}:$PATH"
        )
        self.screen.line(
            f"  muster jobs --all; muster show {self.number}; muster logs {self.number} --tail 5; muster queue list; muster host list; muster ledger"
        )
        self.screen.line("End it and remove everything:  deploy/demo.sh clean")

    def evidence(self) -> str:
        """For a failure: what the system says, while it's still there."""
        parts = []
        for command in (
            ["jobs", "--all"],
            ["host", "list"],
            ["show", str(getattr(self, "number", 1))],
        ):
            try:
                parts.append(
                    f"$ muster {' '.join(command)}\n{self.system.run(command, timeout_s=5).stdout}"
                )
            except (Failed, OSError) as error:
                parts.append(f"$ muster {' '.join(command)}\n{error}")
        for name in self.system.processes:
            parts.append(f"-- the end of {name}.log\n{self.system.log_tail(name, 8)}")
        return "\n".join(parts)
