"""How an environment is entered: the port and the token of its server, in files that its owner alone may read."""

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

TOKEN_BYTES = 32


class SessionError(Exception):
    """What keeps an environment from being entered, for its user."""


@dataclass
class Session:
    attempt: str  # the job's, whose server it is
    port: int
    token: str


def directory(environment: Mapping[str, str]) -> Path:
    job = environment.get("MUSTER_JOB_DIR")
    if not job:
        raise SessionError(
            "MUSTER_JOB_DIR is not set: this runs as a job's program (muster dev up)"
        )
    return Path(job) / ".dev"


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def clear(place: Path) -> None:
    """What an earlier start left: nothing of it leads in any more."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700, parents=True)
    place.chmod(0o700)  # whatever the umask


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others."""
    new = path.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    new.rename(path)


def publish(place: Path, session: Session) -> None:
    write_private(place / "session.json", json.dumps(asdict(session)))


def withdraw(place: Path) -> None:
    for name in ("session.json", "token"):
        (place / name).unlink(missing_ok=True)


def read(place: Path, attempt: str) -> Session | None:
    """None: this attempt's server can't be entered yet."""
    try:
        session = Session(**json.loads((place / "session.json").read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return session if session.attempt == attempt else None


def wait(environment: Mapping[str, str], timeout_s: float) -> Session:
    place, until = directory(environment), time.monotonic() + timeout_s
    while (session := read(place, environment.get("MUSTER_ATTEMPT", ""))) is None:
        if time.monotonic() > until:
            number = environment.get("MUSTER_JOB", "JOB")
            raise SessionError(
                f"its server has not answered within {timeout_s:g} s: muster logs {number}"
            )
        time.sleep(0.1)
    return session
