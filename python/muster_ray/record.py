"""Where the head is, for the others: a file in the head's directory. The head alone writes it; a new attempt of the head is another cluster."""

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

STARTED, DONE, FAILED, DEAD, STOPPED = "started", "done", "failed", "dead", "stopped"


@dataclass(frozen=True)
class Head:
    attempt: int
    # STARTED: others may join. STOPPED: by Muster, which starts it again. FAILED: the program has. DEAD: Ray is. Of both Muster may see a fault that it tries again.
    state: str
    address: str  # HOST:PORT, Ray's own form
    token: str  # a file with it
    cause: str = ""  # of FAILED and DEAD


def directory(environment: dict[str, str]) -> Path:
    """Of the head. Members of an array are numbered on from its own number, which is the first one's; the rest of their directories' names is the same."""
    own = Path(environment["MUSTER_JOB_DIR"])
    _, _, rest = own.name.partition("-")
    return own.parent / f"{environment['MUSTER_ARRAY_JOB']}-{rest}" / "ray"


def read(folder: Path, before: Head | None = None) -> Head | None:
    """`before`: what it said the last time, and says still where the storage can't tell now. Nobody removes the file, so one that isn't there any more is hidden."""
    try:
        return _read(folder)
    except OSError:
        return before


def _read(folder: Path) -> Head:
    return Head(**json.loads((folder / "head.json").read_text()))


def write(folder: Path, head: Head) -> None:
    """Unless a newer attempt has: the host of this one may have been thought lost."""
    with contextlib.suppress(FileNotFoundError):
        if _read(folder).attempt > head.attempt:
            return
    draft = folder / f"head.json.{head.attempt}"
    draft.write_text(json.dumps(asdict(head)) + "\n")
    os.replace(draft, folder / "head.json")


def new_token(folder: Path, attempt: int) -> Path:
    """Whoever can read the file may run anything in the cluster: it is its owner's alone."""
    path = folder / f"token-{attempt}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path
