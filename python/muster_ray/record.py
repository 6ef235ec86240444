"""Where the head is, for the others: a file in the head's directory. The head alone writes it; a new attempt of the head is another cluster."""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

STARTED, DONE, FAILED, STOPPED = "started", "done", "failed", "stopped"


@dataclass(frozen=True)
class Head:
    attempt: int
    state: str  # STARTED: others may join; STOPPED: by Muster, which starts it again
    address: str  # HOST:PORT, Ray's own form
    token: str  # a file with it
    cause: str = ""  # of FAILED


def directory(environment: dict[str, str]) -> Path:
    """Of the head. Members of an array are numbered on from its own number, which is the first one's; the rest of their directories' names is the same."""
    own = Path(environment["MUSTER_JOB_DIR"])
    _, _, rest = own.name.partition("-")
    return own.parent / f"{environment['MUSTER_ARRAY_JOB']}-{rest}" / "ray"


def read(folder: Path) -> Head | None:
    try:
        return Head(**json.loads((folder / "head.json").read_text()))
    except FileNotFoundError:
        return None


def write(folder: Path, head: Head) -> None:
    """Unless a newer attempt has: the host of this one may have been thought lost."""
    there = read(folder)
    if there is not None and there.attempt > head.attempt:
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
