"""Where parts go: a directory that all workers see, or an object store. In both a part is there whole or not at all, and the first one stays."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from muster_score import files, objects
from muster_score.errors import InputError, StoreFailed
from muster_score.plan import Plan
from muster_score.stopping import stop_if_told

MARK = "_muster_score.json"  # in a store: whose place it is


def parts_of(plan: Plan) -> "Directory | Bucket":
    return Bucket(plan) if objects.is_url(str(plan.output)) else Directory(plan)


class Directory:
    """A part appears by a link: it is its own record."""

    def __init__(self, plan: Plan):
        self.plan, self.output = plan, Path(plan.output)
        self.bad = plan.own / "bad"
        self.written = plan.own / "parts"
        for directory in (self.bad, self.written):
            directory.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        """Raises InputError: nothing can be written there. To be called before finished()."""

    def finished(self) -> bool:
        return (self.output / "manifest.json").exists()

    def has(self, shard: int) -> bool:
        return self.path(shard).exists()

    def found(self) -> Iterator[int]:
        """Shards whose parts are there."""
        with os.scandir(self.output) as entries:
            for entry in entries:
                shard = self.plan.shard(entry.name)
                if shard is not None:
                    yield shard

    def take_over(self, shard: int) -> bool:
        """Whether a worker that died has left it, all but the record."""
        return False

    def path(self, shard: int) -> Path:
        return self.output / self.plan.part(shard)

    def put(self, shard: int, name: str, lines: list[bytes], bad: int) -> None:
        """`name`: no other worker's."""
        written = self.written / name
        try:
            with written.open("wb") as file:
                files.write_part(lines, self.plan.output_format, file)
                file.flush()
                os.fsync(file.fileno())
            # Of this file alone: of two workers the one that loses may have counted otherwise.
            if bad:
                found = {"shard": shard, "bad": bad, "file": identity(written)}
                files.create(self.bad / f"{shard:08}.{uuid.uuid4().hex}", found)
            # The commit: from here on the part is there, and it is this one.
            files.publish(written, self.path(shard))
        except BaseException:
            written.unlink(missing_ok=True)
            raise

    def bad_rows(self) -> dict[str, int]:
        """Of parts that have any."""
        bad = {}
        for path in sorted(self.bad.glob("0*")):
            found = files.read(path)
            part = self.path(found["shard"])
            if identity(part) == found["file"]:
                bad[part.name] = found["bad"]
        return bad

    def finish(self, manifest: dict) -> None:
        files.create(self.output / "manifest.json", manifest)

    def manifest(self) -> dict | None:
        """None: not all parts are there."""
        return files.read(self.output / "manifest.json")

    def tidy(self) -> None:
        """Removes what workers that were killed left behind. All parts are there."""
        for left in self.written.iterdir():
            left.unlink(missing_ok=True)
        for directory in (self.output, self.plan.own, self.plan.own / "leases", self.bad):
            files.tidy(directory)


class Bucket:
    """A part appears by a PUT under its name that only the first one succeeds in. It says itself of which plan it is and how many of its rows are bad; a
    record of it in the directory of work spares a request for each look. Of two jobs at one place only that goes on whose mark is there."""

    def __init__(self, plan: Plan):
        self.plan, self.url = plan, str(plan.output)
        self.done = plan.own / "done"
        self.done.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        """Raises InputError: it can't be asked, or there are objects of another job, or of something else. Marks the place, and forgets parts that are gone."""
        known = self._known()  # before the list is asked for, in which all of them have to be
        there = self._listed()
        strange = [shard for shard, etag in there.items() if known.get(shard) != etag]
        names = [self.plan.part(shard) for shard in strange[:1]]  # if one is ours, all are
        for name in ["manifest.json", *names]:
            found = objects.head(f"{self.url}/{name}")
            if found is not None:
                self._refuse_another(found)
        self._mark()
        self._forget([shard for shard, etag in known.items() if there.get(shard) != etag])

    def finished(self) -> bool:
        there = objects.head(self._manifest_url) if self._manifest.exists() else None
        if there is not None:
            self._refuse_another(there)
        return there is not None

    def has(self, shard: int) -> bool:
        return self._record(shard).exists()

    def found(self) -> Iterator[int]:
        with os.scandir(self.done) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    yield int(entry.name)

    def take_over(self, shard: int) -> bool:
        there = objects.head(self._url(shard))
        if there is not None:
            self._commit(shard, there)
        return there is not None

    def put(self, shard: int, name: str, lines: list[bytes], bad: int) -> None:
        body = files.part_bytes(lines, self.plan.output_format)
        told = self._told() | {"muster-bad-rows": str(bad)}
        self._commit(shard, objects.put_new(self._url(shard), body, told))

    def bad_rows(self) -> dict[str, int]:
        """Raises InputError: another job is at the same place. StoreFailed: parts are gone; their records are, too."""
        self._mark()
        there = self._listed()
        bad, gone = {}, []
        for shard in range(len(self.plan.shards)):
            stop_if_told()
            record = files.read(self._record(shard)) if shard in there else None
            if record is None or record["etag"] != there[shard]:
                # Gone, or, in a store without conditions, replaced by the last one.
                self._forget([shard])
                known = shard in there and self.take_over(shard)
                record = files.read(self._record(shard)) if known else None
            if record is None:
                gone.append(shard)
            elif record["bad"]:
                bad[self.plan.part(shard)] = record["bad"]
        if gone:
            raise StoreFailed(
                f"{self._url(gone[0])} is gone, which was written (of {len(self.plan.shards)} parts {len(gone)} are). See who removes them. Started anew, the worker writes them again"
            )
        return bad

    def finish(self, manifest: dict) -> None:
        body = json.dumps(manifest).encode() + b"\n"
        told = self._told() | {"muster-digest": hashlib.sha256(body).hexdigest()[:32]}
        there = self._refuse_another(objects.put_new(self._manifest_url, body, told))
        if there.told.get("muster-digest") != told["muster-digest"]:
            # This plan's, of before some of its parts were lost and made again.
            objects.put(self._manifest_url, body, told)
        files.create(self._manifest, manifest)

    def manifest(self) -> dict | None:
        """As this directory of work knows it."""
        return files.read(self._manifest)

    def tidy(self) -> None:
        for directory in (self.plan.own, self.plan.own / "leases", self.done):
            files.tidy(directory)

    @property
    def _manifest(self) -> Path:
        return self.plan.own / "manifest.json"

    @property
    def _manifest_url(self) -> str:
        return f"{self.url}/manifest.json"

    def _url(self, shard: int) -> str:
        return f"{self.url}/{self.plan.part(shard)}"

    def _record(self, shard: int) -> Path:
        return self.done / f"{shard:08}"

    def _told(self) -> dict[str, str]:
        return {"muster-plan": self.plan.digest}

    def _known(self) -> dict[int, str]:
        """Shards and their parts' etags, as the records have them."""
        known = {}
        for shard in self.found():
            stop_if_told()
            record = files.read(self._record(shard))
            if record is not None:
                known[shard] = record["etag"]
        return known

    def _listed(self) -> dict[int, str]:
        """As the store has them. Raises InputError: there are parts of something else."""
        there = {}
        for one in objects.below(f"{self.url}/part-"):
            shard = self.plan.shard(one.url.removeprefix(f"{self.url}/"))
            if shard is None:
                raise _another(one.url)
            there[shard] = one.etag
        return there

    def _mark(self) -> None:
        """That the place is this plan's from now on."""
        url = f"{self.url}/{MARK}"
        there = objects.head(url)
        if there is None:
            content = self._told() | {"settings": self.plan.settings}
            put = objects.put_new(url, json.dumps(content).encode() + b"\n", self._told())
            there = objects.head(url) or put  # in a store without conditions the last one stays
        self._refuse_another(there)

    def _forget(self, gone: list[int]) -> None:
        for shard in gone:
            self._record(shard).unlink(missing_ok=True)
        if gone:
            self._manifest.unlink(missing_ok=True)

    def _refuse_another(self, there: objects.Object) -> objects.Object:
        if there.told.get("muster-plan") != self.plan.digest:
            raise _another(there.url)
        return there

    def _commit(self, shard: int, there: objects.Object) -> None:
        files.create(self._record(shard), _counted(self._refuse_another(there)))


def _another(url: str) -> InputError:
    return InputError(
        f"{url} is there, and of another input, of other settings, or of something else. Take another --output, or remove what is there"
    )


def _counted(there: objects.Object) -> dict:
    return {"etag": there.etag, "bad": int(there.told.get("muster-bad-rows", "0"))}


def identity(path: Path) -> list[int]:
    """Of a file, under whatever name. Not the inode alone: that of one that was removed is given to the next."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]
