"""Who works on which shard. Files below OUT/_muster_score/leases: a lease of shard 12 is 00000012.GENERATION, and the newest generation has it.

A lease only keeps two workers from doing the same work. That no row is lost and none is doubled doesn't hang on it: a part appears by a link that
the first one makes (files.publish). So a worker that was thought dead, and isn't, does no harm.

Nobody's clock is compared with another's: a worker writes a counter into its lease; another takes the shard over when it has not seen the
counter change for so long, by its own clock.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from muster_score.files import create


@dataclass
class Seen:
    content: bytes
    since_s: float


class Leases:
    def __init__(self, directory: Path, owner: str, lease_s: float, clock=time.monotonic):
        self.directory, self.owner, self.lease_s, self.clock = directory, owner, lease_s, clock
        self.seen: dict[str, Seen] = {}  # leases of others that were found in the way
        self.beats = 0

    def take(self, shard: int) -> Path | None:
        """The lease's file; None: somebody else works on it, as far as can be told."""
        newest = self._newest(shard)
        generation = 1
        if newest is not None:
            if not self._is_over(newest):
                return None
            generation = int(newest.suffix[1:]) + 1
        lease = self.directory / f"{shard:08}.{generation}"
        if not create(lease, {"owner": self.owner, "beat": 0}):
            return None
        if newest is not None:
            self.seen.pop(newest.name, None)
        return lease

    def renew(self, lease: Path) -> None:
        self.beats += 1
        self._write(lease, f'{{"owner": "{self.owner}", "beat": {self.beats}}}')

    def give_back(self, lease: Path) -> None:
        self._write(lease, '{"owner": "", "beat": 0}')

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

    def _is_over(self, lease: Path) -> bool:
        try:
            content = lease.read_bytes()
        except FileNotFoundError:
            return False  # its part has come meanwhile
        # One's own is of an attempt before: a member of an array is one process at a time.
        if content.startswith((b'{"owner": ""', f'{{"owner": "{self.owner}"'.encode())):
            return True
        now_s = self.clock()
        seen = self.seen.get(lease.name)
        if seen is None or seen.content != content:
            self.seen[lease.name] = Seen(content, now_s)
            return False
        return now_s - seen.since_s >= self.lease_s

    @staticmethod
    def _write(lease: Path, text: str) -> None:
        """In place: whoever has a lease is the only one that writes it. Not there any more: the shard is done."""
        try:
            file = os.open(lease, os.O_WRONLY | os.O_TRUNC)
        except FileNotFoundError:
            return
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
