"""Who works on which shard. Files below OUT/_muster_score/leases: a lease of shard 12 is 00000012.GENERATION, and the newest generation has it.

A lease only keeps two workers from doing the same work. That no row is lost and none is doubled doesn't hang on it: a part appears by a link that
the first one makes (files.publish). So a worker that was thought dead, and isn't, does no harm.

Nobody's clock is compared with another's: a worker writes a counter into its lease; another takes the shard over when it has not seen the
counter change for so long, by its own clock.

A lease also hands on how many workers died of its shard before, and, once that is suspicious, which row each had in hand.
"""

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from muster_score.files import create

CAREFUL_AFTER = 2  # deaths: the next worker goes row by row, and says which one it has in hand
DEADLY = 2  # deaths with the same row in hand: it isn't asked any more


@dataclass
class Lease:
    path: Path
    owner: str
    deaths: int = (
        0  # of workers that had the shard before, and neither finished it nor gave it back
    )
    died_at: dict[int, int] = field(default_factory=dict)  # row: deaths with it in hand
    row: int | None = None  # in hand, if careful
    beat: int = 0

    @property
    def careful(self) -> bool:
        return self.deaths >= CAREFUL_AFTER

    def deadly(self, row: int) -> bool:
        return self.died_at.get(row, 0) >= DEADLY

    def content(self) -> dict:
        died_at = {str(row): count for row, count in self.died_at.items()}
        return {"owner": self.owner, "beat": self.beat, "deaths": self.deaths} | (
            {"died_at": died_at, "row": self.row} if self.careful else {}
        )


@dataclass
class Seen:
    content: bytes
    since_s: float


class Leases:
    def __init__(self, directory: Path, owner: str, lease_s: float, clock=time.monotonic):
        self.directory, self.owner, self.lease_s, self.clock = directory, owner, lease_s, clock
        self.seen: dict[str, Seen] = {}  # leases of others that were found in the way
        self.writing = threading.Lock()

    def take(self, shard: int) -> Lease | None:
        """None: somebody else works on it, as far as can be told."""
        newest = self._newest(shard)
        generation = 1
        lease = Lease(Path(), self.owner)
        if newest is not None:
            content = self._over(newest)
            if content is None:
                return None
            generation = int(newest.suffix[1:]) + 1
            lease = _after(content, self.owner)
        lease.path = self.directory / f"{shard:08}.{generation}"
        try:
            if not create(lease.path, lease.content(), durable=False):
                return None
        except FileNotFoundError:
            return None  # all is done, and another worker has tidied up
        if newest is not None:
            self.seen.pop(newest.name, None)
        return lease

    def renew(self, lease: Lease) -> None:
        with self.writing:
            lease.beat += 1
            _write(lease.path, lease.content())

    def hold(self, lease: Lease, row: int | None) -> None:
        """That it has this row in hand."""
        with self.writing:
            lease.row = row
            _write(lease.path, lease.content())

    def give_back(self, lease: Lease, died: bool = False) -> None:
        """`died`: of the shard, as far as can be told; the process itself is still there to say so."""
        left = _after(lease.content(), "") if died else lease
        with self.writing:
            _write(lease.path, left.content() | {"owner": "", "row": None})

    def forget(self, shard: int) -> None:
        """Its part is there."""
        for path in self.directory.glob(f"{shard:08}.*"):
            path.unlink(missing_ok=True)

    def _newest(self, shard: int) -> Path | None:
        # Generations have no gap: those of a shard are removed together, once nobody needs them.
        found = None
        generation = 1
        while (path := self.directory / f"{shard:08}.{generation}").exists():
            found, generation = path, generation + 1
        return found

    def _over(self, lease: Path) -> dict | None:
        """What it says, if nobody works on the shard any more."""
        try:
            raw = lease.read_bytes()
        except FileNotFoundError:
            return None  # its part has come meanwhile
        content = _parse(raw)
        # One's own is of an attempt before: a member of an array is one process at a time.
        if content.get("owner") in ("", self.owner):
            return content
        now_s = self.clock()
        seen = self.seen.get(lease.name)
        if seen is None or seen.content != raw:
            self.seen[lease.name] = Seen(raw, now_s)
            return None
        return content if now_s - seen.since_s >= self.lease_s else None


class NotAlone(Exception):
    pass


def check_alone(environment) -> None:
    """NotAlone: this worker has several processes. All have one owner's name, so each would take the others' leases for its own of an attempt before."""
    if int(environment.get("LOCAL_WORLD_SIZE") or 1) > 1:
        raise NotAlone(
            "runs several times in this worker, and each process would take the others' leases for its own; write processes_per_worker: 1 into the job"
        )


def owner_of(environment) -> str:
    """Who a lease belongs to: a member of a job. Its number may occur in two clusters that share the storage, its directory can't."""
    if "MUSTER_JOB" in environment:
        return f"{environment['MUSTER_JOB']} {environment.get('MUSTER_JOB_DIR', os.getuid())}"
    return f"{os.uname().nodename}-{os.getpid()}"


def _write(path: Path, content: dict) -> None:
    """In place: whoever has a lease is the only one that writes it. Not there any more: the shard is done."""
    text = json.dumps(content).encode() + b"\n"
    try:
        file = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        # Whoever dies between the two leaves a whole first line, and no more than that is read.
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))
    finally:
        os.close(file)


def _parse(raw: bytes) -> dict:
    try:
        content = json.loads(raw.split(b"\n")[0])
    except ValueError:
        return {"owner": None}
    return content if isinstance(content, dict) else {"owner": None}


def _after(content: dict, owner: str) -> Lease:
    """The lease that follows one with this content: it counts the death of its worker, if it has not given it back."""
    died_at = {int(row): count for row, count in content.get("died_at", {}).items()}
    deaths, row = content.get("deaths", 0), content.get("row")
    if content.get("owner") != "":
        deaths += 1
        if row is not None:
            died_at[row] = died_at.get(row, 0) + 1
    return Lease(Path(), owner, deaths, died_at)
