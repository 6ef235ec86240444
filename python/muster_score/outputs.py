"""Where parts go: a directory that all workers see, or an object store. In both a part is there whole or not at all, and the first one stays."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from muster_score import files, objects
from muster_score.errors import InputError
from muster_score.plan import Plan


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
        """Raises InputError: nothing can be written there."""

    def finished(self) -> bool:
        return (self.output / "manifest.json").exists()

    def has(self, shard: int) -> bool:
        return self.path(shard).exists()

    def found(self) -> Iterator[int]:
        """Shards whose parts are there."""
        with os.scandir(self.output) as entries:
            for entry in entries:
                number = entry.name.removeprefix("part-").removesuffix(
                    f".{self.plan.output_format}"
                )
                if number.isdigit() and entry.name == self.plan.part(int(number)):
                    yield int(number)

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
            if (
                bad
            ):  # of this file alone: of two workers the one that loses may have counted otherwise
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

    def tidy(self) -> None:
        """Removes what workers that were killed left behind. All parts are there."""
        for left in self.written.iterdir():
            left.unlink(missing_ok=True)
        for directory in (self.output, self.plan.own, self.plan.own / "leases", self.bad):
            files.tidy(directory)


class Bucket:
    """A part appears by a PUT under its name that only the first one succeeds in. It says itself of which plan it is and how many of its rows are bad; a
    record of it in the directory of work spares a request for each look."""

    def __init__(self, plan: Plan):
        self.plan, self.url = plan, str(plan.output)
        self.done = plan.own / "done"
        self.done.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        """Raises InputError: it can't be asked, or parts of something else are there."""
        for there in objects.below(f"{self.url}/part-"):
            self._refuse_another(objects.head(there.url) or there)
            return  # of one plan are all or none, as none is written beside another's

    def finished(self) -> bool:
        return self._manifest.exists()

    def has(self, shard: int) -> bool:
        return self._record(shard).exists()

    def found(self) -> Iterator[int]:
        with os.scandir(self.done) as entries:
            for entry in entries:
                if entry.name.isdigit():
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
        there = {one.url: one for one in objects.below(f"{self.url}/part-")}
        bad = {}
        for shard in range(len(self.plan.shards)):
            url, record = self._url(shard), files.read(self._record(shard))
            if url not in there:
                raise InputError(
                    f"{url} is gone, which was written. Remove {self._record(shard)}, and the job writes it again"
                )
            if there[url].etag != record["etag"]:  # a store without conditions: the last one stays
                record = _counted(self._refuse_another(objects.head(url) or there[url]))
            if record["bad"]:
                bad[self.plan.part(shard)] = record["bad"]
        return bad

    def finish(self, manifest: dict) -> None:
        body = json.dumps(manifest).encode() + b"\n"
        objects.put(f"{self.url}/manifest.json", body, self._told())
        files.create(self._manifest, manifest)

    def tidy(self) -> None:
        for directory in (self.plan.own, self.plan.own / "leases", self.done):
            files.tidy(directory)

    @property
    def _manifest(self) -> Path:
        return self.plan.own / "manifest.json"

    def _url(self, shard: int) -> str:
        return f"{self.url}/{self.plan.part(shard)}"

    def _record(self, shard: int) -> Path:
        return self.done / f"{shard:08}"

    def _told(self) -> dict[str, str]:
        return {"muster-plan": self.plan.digest}

    def _refuse_another(self, there: objects.Object) -> objects.Object:
        if there.told.get("muster-plan") != self.plan.digest:
            raise InputError(
                f"{there.url} is there, and of another input, of other settings, or of something else. Take another --output, or remove what is there"
            )
        return there

    def _commit(self, shard: int, there: objects.Object) -> None:
        files.create(self._record(shard), _counted(self._refuse_another(there)))


def _counted(there: objects.Object) -> dict:
    return {"etag": there.etag, "bad": int(there.told.get("muster-bad-rows", "0"))}


def identity(path: Path) -> list[int]:
    """Of a file, under whatever name. Not the inode alone: that of one that was removed is given to the next."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]
