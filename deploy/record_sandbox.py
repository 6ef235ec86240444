#!/usr/bin/env python3
"""Records a terminal session of `muster sandbox`: docs/sandbox.cast (asciicast v2, for `asciinema play`) and the text of the same
session in docs/sandbox.md, between its two markers.

    deploy/build.sh && deploy/record_sandbox.py            [--bin build/release/bin]

Every line is the output of a real command on a terminal of 132 columns; nothing is edited.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 132, 40
BEGIN, END = "<!-- session: made by deploy/record_sandbox.py -->", "<!-- end of session -->"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Recorder:
    """Runs commands on a terminal, and keeps what it shows with its times."""

    def __init__(self, environment: dict[str, str]):
        self.environment, self.began, self.events, self.text = environment, time.monotonic(), [], []

    def show(self, data: str) -> None:
        self.events.append([round(time.monotonic() - self.began, 3), "o", data])
        self.text.append(data)

    def type(self, command: str) -> None:
        self.show("$ ")
        for letter in command:
            time.sleep(0.02)
            self.show(letter)
        time.sleep(0.2)
        self.show("\r\n")

    def start(self, command: list[str]) -> tuple[subprocess.Popen, int]:
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, env=self.environment, start_new_session=True
        )
        os.close(end)
        return process, terminal

    def read(self, terminal: int, until: str | None = None, seconds: float = 60) -> str:
        """Shows what comes, until the program ends, `until` has appeared, or the time is over."""
        seen, deadline = "", time.monotonic() + seconds
        while time.monotonic() < deadline and (until is None or until not in seen):
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
            if not data:
                break
            seen += data
            self.show(data)
        return seen

    def run(self, command: str, keys_after_s: float | None = None) -> str:
        """One command to its end; with keys_after_s, Ctrl+C after so long."""
        self.type(command)
        process, terminal = self.start(command.split())
        if keys_after_s is None:
            seen = self.read(terminal)
        else:
            seen = self.read(terminal, seconds=keys_after_s)
            process.send_signal(signal.SIGINT)
            seen += self.read(terminal)
        process.wait()
        os.close(terminal)
        time.sleep(1)
        return seen


def plain(text: str) -> str:
    """As a page shows it: of a screen that was drawn anew, the last one."""
    text = text.replace("\r\n", "\n")
    lines = []
    for line in text.split("\n"):
        if "\x1b[H\x1b[2J" in line:  # top: what was above it in this command is gone
            while lines and not lines[-1].startswith("$ "):
                lines.pop()
            line = line.rsplit("\x1b[H\x1b[2J", 1)[1]
        lines.append(ESCAPES.sub("", line.rsplit("\r", 1)[-1]).rstrip())
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    arguments = parser.parse_args()
    kept = {key: os.environ[key] for key in ("HOME", "USER") if key in os.environ}
    environment = kept | {
        "PATH": f"{arguments.bin.resolve()}:/usr/bin:/bin",
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TZ": "UTC",
    }
    recorder = Recorder(environment)
    recorder.type("muster sandbox")
    sandbox, terminal = recorder.start(["muster", "sandbox"])
    try:
        shown = recorder.read(terminal, until="leaves nothing behind.")
        server = re.search(r"MUSTER_SERVER=(\S+)", shown).group(1)
        environment["MUSTER_SERVER"] = server
        recorder.show("\r\n")
        recorder.type(f"export MUSTER_SERVER={server}      # another shell")
        time.sleep(3)
        recorder.run("muster top", keys_after_s=5)
        recorder.run("muster jobs --state waiting --limit 8")
        waiting = json.loads(
            subprocess.run(
                ["muster", "jobs", "--state", "waiting", "-o", "json"],
                env=environment,
                capture_output=True,
                text=True,
            ).stdout
        )["jobs"]
        explained = [
            json.loads(
                subprocess.run(
                    ["muster", "explain", str(job["number"]), "-o", "json"],
                    env=environment,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for job in waiting[-12:]
        ]
        number = max(explained, key=lambda one: len(one["relaxations"]))["job"]["number"]
        recorder.run(f"muster explain {number}")
        recorder.run("muster run --queue scratch --gpus 1 --gpu-type l40s-48g -- sleep 3")
        recorder.run("muster simulate --drain phx/h001 --for 6h")
        recorder.run("muster simulate --quota prod:h100-80g=1024 --for 6h")
        recorder.run("muster ledger --by queue")
        recorder.run("muster host show phx/h001")
    finally:
        recorder.show("^C\r\n")
        sandbox.send_signal(signal.SIGINT)
        recorder.read(terminal)
        sandbox.wait()

    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "muster sandbox"}
    cast = (
        "\n".join(json.dumps(line, ensure_ascii=False) for line in [header, *recorder.events])
        + "\n"
    )
    (ROOT / "docs" / "sandbox.cast").write_text(cast)
    page = ROOT / "docs" / "sandbox.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n```\n{plain(''.join(recorder.text))}```\n{END}{after}")


if __name__ == "__main__":
    main()
