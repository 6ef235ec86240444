"""What the attacks share. Each is a function that a job runs as its owner; it knows all that targets.json tells, so that nothing depends on
guessing, and returns what it gained: the text of a secret, or a sentence. Nothing, or an OSError: it was refused. None of them does harm where it succeeds."""

import ctypes
import json
import os
from pathlib import Path

TARGETS = json.loads((Path(__file__).parent / "targets.json").read_text())
ATTACKS = {}
LIBC = ctypes.CDLL(None, use_errno=True)


def attack(function):
    ATTACKS[function.__name__] = function
    return function


def say_verdict(gained: str, refused: str) -> None:
    os.write(1, f"\nVERDICT {json.dumps({'gained': gained, 'refused': refused})}\n".encode())


def call(name: str, *arguments) -> int:
    """A function of the C library; OSError where it says -1."""
    words = [word.encode() if isinstance(word, str) else word for word in arguments]
    result = getattr(LIBC, name)(*words)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), name)
    return result


def first(attempts) -> str:
    """What the first of these that isn't refused gained."""
    refusals = []
    for attempt in attempts:
        try:
            if gained := attempt():
                return gained
        except OSError as error:
            refusals.append(error)
    if refusals:
        raise refusals[-1]
    return ""


def reads(path) -> str:
    with open(path, "rb") as file:
        return f"read {path}: {file.read(40)!r}"


def opens(path, flags: int) -> str:
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
    return f"opened {path}"


def overwrites(path) -> str:
    return opens(path, os.O_WRONLY)


def creates_in(directory) -> str:
    path = f"{directory}/planted-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL))
    os.unlink(path)
    return f"made a file in {directory}"


def lists(directory) -> str:
    names = os.listdir(directory)
    return f"listed {directory}: {names[:5]}" if names else ""


def in_child(function) -> str:
    """function() in a process of its own, which it may spoil."""
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(start, (function() or "").encode())
        except OSError as error:
            os.write(start, f"-{error}".encode())
        os._exit(0)
    os.close(start)
    told = b""
    while part := os.read(end, 4096):
        told += part
    os.waitpid(child, 0)
    text = told.decode(errors="replace")
    if text.startswith("-"):
        raise PermissionError(text[1:])
    return text


def own_user_namespace() -> None:
    """All capabilities, in a user namespace and mounts of its own."""
    uid, gid = os.getuid(), os.getgid()
    call("unshare", 0x10000000 | 0x00020000)  # CLONE_NEWUSER | CLONE_NEWNS
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
