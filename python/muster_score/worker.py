"""One worker: takes shards until every part is there."""

import os
import threading
import time
import uuid
from pathlib import Path

import muster_runtime

from muster_score import files
from muster_score.engines import EngineDied
from muster_score.inputs import InputError
from muster_score.leases import Lease, Leases
from muster_score.plan import Options, Plan
from muster_score.scorer import Doubted, Scorer

STOPPED = 143  # exit code after SIGTERM
MOST_PUT_OFF = 3  # shards in which the engine failed, while it has never answered


class Stopped(Exception):
    pass


def stop_if_told() -> None:
    if muster_runtime.should_stop():
        raise Stopped


class Worker:
    def __init__(self, options: Options, plan: Plan, engine, predicts: bool, owner: str):
        self.options, self.plan, self.owner = options, plan, owner
        self.leases = Leases(plan.own / "leases", owner, options.lease_s)
        self.scorer = Scorer(options, plan, engine, predicts, self.leases)
        self.done = bytearray(len(plan.shards))
        self.done_rows = 0
        self.total_rows = sum(shard.rows for shard in plan.shards)
        self.put_off: dict[int, Doubted] = {}  # shards of which no row worked, while nothing had
        self.began_s, self.own_rows = time.monotonic(), 0

    def _look(self, shard: int) -> bool:
        if not self.done[shard] and self.plan.part(shard).exists():
            self.done[shard] = 1
            self.done_rows += self.plan.shards[shard].rows
        return bool(self.done[shard])

    def report(self, more: int = 0) -> None:
        """`more`: rows of the shard in hand."""
        seconds = max(1e-9, time.monotonic() - self.began_s)
        muster_runtime.report(
            self.done_rows + more,
            total_steps=self.total_rows,
            rows_per_s=(self.own_rows + more) / seconds,
        )

    def run(self) -> None:
        """Returns once all parts are there. Stopped: it was told to stop."""
        count = len(self.plan.shards)
        # Workers begin at different places, or each would find the others' leases first.
        start = hash_of(self.owner) % count
        while True:
            left = 0
            for shard in ((start + i) % count for i in range(count)):
                if self._look(shard):
                    continue
                stop_if_told()
                waits = shard in self.put_off and self.scorer.good() is None
                lease = None if waits else self.leases.take(shard)
                if lease is not None:
                    self._work(shard, lease)
                left += not self._look(shard)
            self.report()
            if left == 0:
                break
            self._give_up_if_nothing_works()
            self._wait(min(1.0, self.options.lease_s / 4))
        self._finish()

    def _give_up_if_nothing_works(self) -> None:
        if not self.put_off or self.scorer.good() is not None:
            return
        failed = [doubt for doubt in self.put_off.values() if doubt.engine]
        all_left = all(done or shard in self.put_off for shard, done in enumerate(self.done))
        if len(failed) >= MOST_PUT_OFF or (failed and all_left):
            raise EngineDied(f"no row works at all: {failed[-1]}")
        if all_left:
            last = next(reversed(self.put_off.values()))
            raise InputError(f"--input {self.options.input}: no row can be scored: {last}")

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            stop_if_told()
            time.sleep(0.05)

    # ---- a shard ----

    def _work(self, shard: int, lease: Lease) -> None:
        if self._look(shard):
            self.leases.forget(shard)
            return
        working = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(lease, working), daemon=True)
        renewing.start()
        written = self.plan.own / "parts" / f"{lease.path.name}.{uuid.uuid4().hex}"
        failed = None
        try:
            self._write_part(shard, lease, written)
        except BaseException as error:
            failed = error
        working.set()
        renewing.join()
        if failed is not None:
            self._failed(shard, lease, written, failed)
            return
        self.own_rows += self.plan.shards[shard].rows
        self._look(shard)
        self.leases.forget(shard)
        self.report()

    def _failed(self, shard: int, lease: Lease, written: Path, error: BaseException) -> None:
        """Raises it again, unless the work goes on."""
        written.unlink(missing_ok=True)
        if isinstance(error, FileNotFoundError) and self._look(shard):
            return  # another one was faster, and whoever saw the end has tidied up
        self.leases.give_back(lease, died=isinstance(error, EngineDied))
        if not isinstance(error, Doubted):
            raise error
        self.put_off[shard] = error
        self._give_up_if_nothing_works()

    def _renew(self, lease: Lease, working: threading.Event) -> None:
        while not working.wait(self.options.lease_s / 4):
            try:
                self.leases.renew(lease)
            except OSError:
                continue  # of a file server: the next time may be better, and without a lease no row is lost

    def _write_part(self, shard: int, lease: Lease, written: Path) -> None:
        def between(done: int) -> None:
            stop_if_told()
            self.report(done)

        lines, bad = self.scorer.score(shard, lease, between)
        with written.open("wb") as file:
            if self.options.output_format == "parquet":
                files.write_parquet(lines, file)
            else:
                file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if bad:  # of this file alone: of two workers the one that loses may have counted otherwise
            found = {"shard": shard, "bad": bad, "file": identity(written)}
            files.create(self.plan.own / "bad" / f"{shard:08}.{uuid.uuid4().hex}", found)
        # The commit: from here on the part is there, and it is this one.
        files.publish(written, self.plan.part(shard))

    # ---- the end ----

    def _finish(self) -> None:
        """What the whole is, by the worker that is first to see it done."""
        bad = {}
        for path in sorted((self.plan.own / "bad").glob("0*")):
            found = files.read(path)
            part = self.plan.part(found["shard"])
            if identity(part) == found["file"]:
                bad[part.name] = found["bad"]
        files.create(
            self.plan.manifest,
            {
                "rows": self.total_rows,
                "bad_rows": sum(bad.values()),
                "parts": len(self.plan.shards),
                "bad_rows_by_part": bad,
                "settings": self.plan.settings,
            },
        )
        tidy(self.plan)


def tidy(plan: Plan) -> None:
    """Removes what workers that were killed left behind. All parts are there."""
    for left in (plan.own / "parts").iterdir():
        left.unlink(missing_ok=True)
    for directory in (plan.output, plan.own, plan.own / "leases", plan.own / "bad"):
        files.tidy(directory)


def identity(path: Path) -> list[int]:
    """Of a file, under whatever name. Not the inode alone: that of one that was removed is given to the next."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def hash_of(text: str) -> int:
    """The same in each process."""
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value
