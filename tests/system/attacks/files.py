"""Attacks by paths: what a job plants where Muster will work, and what it names for Muster to work on."""

import json
import os
import socket
import sys
from pathlib import Path

from base import TARGETS, attack, creates_in, first, lists, reads, say_verdict

JOB = Path(os.environ.get("MUSTER_JOB_DIR", "."))
TASK = JOB / os.environ.get("MUSTER_TASK", "main")
# Of this attack alone: directories of root's and of ann's on the same file system as the job's, which no attack may enter or change.
ROOTS, ANNS = (f"{TARGETS[whose]}/{sys.argv[1]}" for whose in ("roots", "anns"))


@attack
def files_of_ann():
    return first(
        (
            lambda: reads(TARGETS["ann_secret"]),
            lambda: lists(os.path.dirname(TARGETS["ann_secret"])),
        )
    )


@attack
def files_of_roots():
    return first((lambda: reads(TARGETS["root_secret"]), lambda: reads("/etc/shadow")))


@attack
def writes_where_others_do():
    places = ("/etc", "/usr/local/bin", TARGETS["bin"], ROOTS, ANNS)
    return first(lambda path=path: creates_in(path) for path in places)


@attack
def programs_of_muster():
    programs = [f"{TARGETS['bin']}/{name}" for name in ("muster-shim", "muster-agent")]
    return ", ".join(path for path in programs if os.access(path, os.W_OK))


@attack
def hard_link_to_roots():
    os.link(f"{ROOTS}/kept", "linked")
    return reads("linked")


def export(staged, target) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        line = json.dumps({"export": {"staged": str(staged), "target": str(target)}})
        sender.sendto(line.encode(), os.environ["MUSTER_PROGRESS_SOCKET"])


def stage() -> Path:
    staging = JOB / "staging"
    staging.mkdir()
    (staging / "planted").write_text("planted")
    return staging


# Judged from outside, when the job has ended: nothing of theirs is where they aimed.


@attack
def export_to_roots():
    export(stage(), f"{ROOTS}/cron.d")


@attack
def export_to_anns():
    export(stage(), f"{ANNS}/model")


@attack
def export_upwards():
    export(stage(), f"../../roots/{sys.argv[1]}/upwards")


@attack
def export_by_a_link():
    (JOB / "out").symlink_to(ROOTS)
    export(stage(), "out/by-a-link")


@attack
def export_over_a_link():
    (JOB / "model").symlink_to(f"{ROOTS}/over-a-link")
    export(stage(), "model")


@attack
def export_of_roots_files():
    export(ROOTS, "mine")


@attack
def export_of_anns_files():
    export(ANNS, "mine")


@attack
def export_of_a_link_to_roots():
    (JOB / "staging").symlink_to(ROOTS)
    export(JOB / "staging", "mine")


def again() -> bool:
    """The second attempt's life; False: the first one's, which has to fail."""
    return os.environ["MUSTER_ATTEMPT"] != "1"


def fail():
    say_verdict("", "")
    os._exit(1)


@attack
def link_where_the_next_attempt_works():
    if not again():
        TASK.rename(TASK.with_name("away"))
        TASK.symlink_to(ROOTS)
        fail()


@attack
def link_instead_of_the_job():
    if not again():
        JOB.rename(JOB.with_name("away-" + JOB.name))
        JOB.symlink_to(ROOTS)
        fail()


@attack
def link_to_anns_instead_of_the_job():
    if not again():
        JOB.rename(JOB.with_name("away-" + JOB.name))
        JOB.symlink_to(ANNS)
        fail()


@attack
def link_instead_of_the_next_attempt():
    if not again():
        (TASK / "attempt-2").symlink_to(ROOTS)
        fail()


@attack
def link_instead_of_checkpoints():
    if not again():
        (TASK / "attempt-2").mkdir()
        (TASK / "attempt-2" / "checkpoints").symlink_to(f"{ROOTS}/checkpoints")
        fail()


@attack
def pipe_instead_of_the_next_attempt():
    """It would hold up whoever opens it; judged from outside: the agent answers."""
    if not again():
        os.mkfifo(TASK / "attempt-2")
        fail()


@attack
def fills_its_storage():
    """Judged from outside: ann's job ends as it should, with the store and the agent's records on other disks."""
    with open(JOB / "fill", "wb") as file:
        try:
            while True:
                file.write(b"x" * (1 << 20))
        except OSError:
            pass


@attack
def names_on_its_storage():
    """So many files that nobody can make one more."""
    try:
        for index in range(200_000):
            (JOB / f"{index}").touch()
    except OSError:
        pass


@attack
def floods_its_log():
    """Judged from outside: the log keeps its bound."""
    line = b"x" * 1000 + b"\n"
    for _ in range(60_000):
        os.write(1, line)


@attack
def forges_lines_of_its_log():
    """Marks, other ranks and escapes; judged from outside: the log's other files have none of it."""
    os.write(1, b"\x1b]0;owned\x07\x01forged\x02forged\n" * 100)
    os.write(1, b"y" * 300_000)


@attack
def workdir_of_roots():
    """Its job names ROOTS as workdir: whoever runs this is there."""
    return "ran in root's directory"


@attack
def workdir_by_a_link():
    """The workdir is a link of its own to ROOTS."""
    return "ran in root's directory"
