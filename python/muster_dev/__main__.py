"""python3 -m muster_dev --idle 2h: the program of an environment; python3 -m muster_dev session: how to enter it. See docs/dev.md."""

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from muster_dev import session, use
from muster_dev.server import Server, ServerError, check_installed

STOPPED = 143  # exit code after SIGTERM
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_BETWEEN_LOOKS_S = 5.0


def duration(text: str) -> float | None:
    """Seconds; None: never."""
    if text == "never":
        return None
    parts = re.findall(r"(\d+)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text}: write 90m, 2h30m or never")
    seconds = sum(int(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds == 0:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return float(seconds)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "muster_dev", description="Runs JupyterLab until it is idle. Or: session [--wait SECONDS]."
    )
    parser.add_argument("--idle", type=duration, default="2h", help="end after so long unused")
    return parser.parse_args(words)


def say(text: str) -> None:
    print(f"muster_dev: {text}", file=sys.stderr, flush=True)


def work_directory() -> Path:
    """The job's `workdir`; else one that all attempts of the job share."""
    here, job = Path.cwd(), Path(os.environ["MUSTER_JOB_DIR"])
    if not here.is_relative_to(job.resolve()):
        return here
    place = job / "work"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


class Watch:
    """Asks again and again whether the environment is used."""

    def __init__(self, uses: Callable[[], str], idle_s: float | None, clock=time.monotonic):
        self._uses, self._idle_s, self._clock = uses, idle_s, clock
        self._used_at = clock()
        self.between_s = min(_MOST_BETWEEN_LOOKS_S, (idle_s or _MOST_BETWEEN_LOOKS_S) / 10)

    def is_idle(self) -> bool:
        if self._idle_s is None:
            return False
        if self._uses():
            self._used_at = self._clock()
        return self._clock() - self._used_at >= self._idle_s


def uses_of(server: Server) -> Callable[[], str]:
    kernels, gpus = use.Kernels(), use.Gpus()
    token = os.environ.get("MUSTER_SHIM_TOKEN", "")
    # Agents of the version before give torchrun's alone.
    run_id = os.environ.get("MUSTER_RUN_ID") or os.environ.get("TORCHELASTIC_RUN_ID", "")

    def uses() -> str:
        found = use.processes()
        return (
            kernels.use(server.kernels())
            or use.use_of_terminals(found, server.process.pid)
            or use.use_beside(found, os.getpid(), token)
            or use.use_by_jobs(run_id)
            or gpus.use()
        )

    return uses


def watch_over(server: Server, root: Path, idle: Watch, stopped: threading.Event) -> int:
    while not stopped.wait(idle.between_s):
        if server.process.poll() is not None:
            code = server.process.returncode
            say(f"JupyterLab has ended by itself (exit {code})")
            return 0 if code == 0 else 1
        if idle.is_idle():
            job = os.environ.get("MUSTER_JOB", "JOB")
            say(
                "idle: no busy kernel, no command, no job and no GPU in use for as long as --idle says, so its"
                f" devices are released. Its files stay in {root}: muster dev resume {job}"
            )
            server.end()
            return 0
    say(f"stopped. Its files stay in {root}")
    server.end()
    return STOPPED


def run(given: argparse.Namespace) -> int:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    check_installed()
    place, root = session.directory(os.environ), work_directory()
    server = Server(place, root, os.environ.get("MUSTER_ATTEMPT", ""))
    try:
        session.publish(place, server.session)
        say(f"JupyterLab serves {root}: muster dev open {os.environ.get('MUSTER_JOB', 'JOB')}")
        return watch_over(server, root, Watch(uses_of(server), given.idle), stopped)
    finally:
        session.withdraw(place)
        if server.process.poll() is None:
            server.end()


def show_session(words: list[str]) -> int:
    parser = argparse.ArgumentParser("muster_dev session")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="until it is there"
    )
    print(json.dumps(asdict(session.wait(os.environ, parser.parse_args(words).wait))))
    return 0


def main(words: list[str]) -> int:
    try:
        return show_session(words[1:]) if words[:1] == ["session"] else run(parse(words))
    except (ServerError, session.SessionError, OSError) as error:
        say(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
