"""One worker: takes shards until every part is there."""

import collections
import threading
import time
import uuid

import muster_runtime

from muster_score import outputs, stopping
from muster_score.engines import EngineDied
from muster_score.inputs import InputError
from muster_score.leases import Lease, Leases
from muster_score.plan import Options, Plan
from muster_score.scorer import Doubted, Scorer
from muster_score.stopping import Stopped, stop_if_told

MOST_PUT_OFF = 3  # shards in which the engine failed, while it has never answered
LOOK_S = 10  # between two looks at what others have done, at least
PACE_S = 60  # over which rows a second are counted


class Pace:
    """Rows a second of all workers, over the last minute."""

    def __init__(self, clock=time.monotonic):
        self.clock = clock
        self.seen: collections.deque[tuple[float, int]] = collections.deque()

    def of(self, done: int) -> float:
        now_s = self.clock()
        if not self.seen or now_s - self.seen[-1][0] >= 1:
            self.seen.append((now_s, done))
        while len(self.seen) > 1 and now_s - self.seen[1][0] >= PACE_S:
            self.seen.popleft()
        then_s, then = self.seen[0]
        return max(0.0, (done - then) / (now_s - then_s)) if now_s > then_s else 0.0


class Worker:
    def __init__(self, options: Options, plan: Plan, engine, predicts: bool, owner: str):
        self.options, self.plan, self.owner = options, plan, owner
        self.parts = outputs.parts_of(plan)
        self.leases = Leases(plan.own / "leases", owner, options.lease_s)
        self.scorer = Scorer(options, plan, engine, predicts, self.leases)
        self.done = bytearray(len(plan.shards))
        self.done_rows = 0
        self.bad_rows = 0  # of its own parts
        self.total_rows = sum(shard.rows for shard in plan.shards)
        self.put_off: dict[int, Doubted] = {}  # shards of which no row worked, while nothing had
        self.pace, self.look_again_s = Pace(), 0.0

    def _look(self, shard: int) -> bool:
        if not self.done[shard] and self.parts.has(shard):
            self._note(shard)
        return bool(self.done[shard])

    def _note(self, shard: int) -> None:
        if not self.done[shard]:
            self.done[shard] = 1
            self.done_rows += self.plan.shards[shard].rows

    def _look_around(self) -> None:
        """At all that others have done, for what is reported. It takes a fiftieth of the time at most."""
        began_s = time.monotonic()
        if began_s < self.look_again_s:
            return
        try:
            for shard in self.parts.found():
                if shard < len(self.done):
                    self._note(shard)
        except OSError:
            pass  # of a file server: it costs a figure
        now_s = time.monotonic()
        self.look_again_s = now_s + max(LOOK_S, 50 * (now_s - began_s))

    def report(self, more: int = 0) -> None:
        """`more`: rows of the shard in hand."""
        self._look_around()
        done = min(self.done_rows + more, self.total_rows)
        pace, bad = self.pace.of(done), self.bad_rows or None
        muster_runtime.report(done, total_steps=self.total_rows, rows_per_s=pace, bad_rows=bad)

    def run(self) -> None:
        """Returns once all parts are there. Stopped: it was told to stop."""
        self._look_around()
        self.pace.of(self.done_rows)
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
            stopping.wait(min(1.0, self.options.lease_s / 4))
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

    # ---- a shard ----

    def _work(self, shard: int, lease: Lease) -> None:
        if self._look(shard):
            self.leases.forget(shard)
            return
        working = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(lease, working), daemon=True)
        renewing.start()
        failed = None
        try:
            self._write_part(shard, lease)
        except BaseException as error:
            failed = error
        working.set()
        renewing.join()
        if failed is not None:
            self._failed(shard, lease, failed)
            return
        self._look(shard)
        self.leases.forget(shard)
        self.report()
        self._refuse_too_many(self.bad_rows)  # whatever the others find

    def _failed(self, shard: int, lease: Lease, error: BaseException) -> None:
        """Raises it again, unless the work goes on."""
        if isinstance(error, EngineDied) and muster_runtime.should_stop():
            error = Stopped()  # the stop reached the engine's own processes first
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

    def _write_part(self, shard: int, lease: Lease) -> None:
        def between(done: int) -> None:
            stop_if_told()
            self.report(done)

        if self.parts.take_over(shard):
            return
        lines, bad = self.scorer.score(shard, lease, between)
        self.parts.put(shard, f"{lease.path.name}.{uuid.uuid4().hex}", lines, bad)
        self.bad_rows += bad

    # ---- the end ----

    def _refuse_too_many(self, bad: int) -> None:
        limit = self.options.max_bad_rows
        if not limit.exceeded(bad, self.total_rows):
            return
        why = f", such as: {self.scorer.why}" if self.scorer.why else ""
        raise InputError(
            f"{bad} of {self.total_rows} rows could not be scored, more than --max-bad-rows {limit.text} allows{why}. The parts in {self.plan.output} say why of each ({self.options.error_column}). If that is as it should be: the same again with --max-bad-rows 100%, which keeps them"
        )

    def _finish(self) -> None:
        """What the whole is, by the worker that is first to see it done."""
        bad = self.parts.bad_rows()
        self._refuse_too_many(sum(bad.values()))
        self.parts.finish(
            {
                "rows": self.total_rows,
                "bad_rows": sum(bad.values()),
                "parts": len(self.plan.shards),
                "bad_rows_by_part": bad,
                "settings": self.plan.settings,
            }
        )
        self.parts.tidy()


def hash_of(text: str) -> int:
    """The same in each process."""
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value
