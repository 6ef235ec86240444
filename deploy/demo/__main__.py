"""Muster's first run (see ../demo.sh): drives a real Muster through its command line and asserts what it shows."""

import argparse
import fcntl
import os
import shutil
import signal
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(1, str(SOURCE / "deploy" / "local"))

from local_system import Failed, LocalSystem, kill_all, processes_of  # noqa: E402
from reference import Reference  # noqa: E402
from screen import Screen  # noqa: E402
from story import Story  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="deploy/demo.sh")
    parser.add_argument("verb", nargs="?", choices=["clean"])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--cache", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", type=Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    bin_dir = Path(os.environ["MUSTER_BIN_DIR"]).resolve()
    # A short path: Unix sockets lie below it.
    folder = Path(os.environ.get("MUSTER_DEMO_DIR", f"/tmp/muster-demo-{os.getuid()}"))

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl+C
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise Failed(
                f"{folder} belongs to somebody else; name another place in MUSTER_DEMO_DIR"
            )
        with open(folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failed(f"another demo runs in {folder}") from None
            return run(options, folder, bin_dir)
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run(options, folder: Path, bin_dir: Path) -> int:
    """With the folder's lock held."""
    killed = kill_all(folder)  # of a demo that was kept, or that died
    kill_all(options.cache)
    if options.verb == "clean":
        for place in (folder, options.cache):
            shutil.rmtree(place, ignore_errors=True)
        print(f"ended {killed} processes; removed {folder} and {options.cache}")
        return 0
    remove_run(folder)
    for name in ("musterd", "muster-agent", "muster-shim", "muster", "muster-trainer"):
        if not os.access(bin_dir / name, os.X_OK):
            raise Failed(f"{bin_dir / name} isn't there; build it first: deploy/build.sh")

    screen = Screen()
    reference = Reference(options.cache, bin_dir, SOURCE)
    story = None
    kept = False
    try:
        story = Story(
            LocalSystem(folder, bin_dir), reference, screen, options.python, options.short
        )
        holds = story.tell()
        if options.keep:
            kept = True
            story.say_how_to_look_around()
        return 0 if holds else 1
    except Failed as error:
        screen.end_bar()
        print(f"\ndemo: {error}", file=sys.stderr)
        if story:
            print(story.evidence(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.end_bar()
        print("\ninterrupted: ending what runs", file=sys.stderr)
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # ending takes seconds, and is not interrupted
        if not kept:
            if story and sys.exc_info()[0] is None:
                story.system.stop()
            kill_all(folder)
            kill_all(options.cache)
            remove_run(folder)
            left = processes_of(folder)
            if left:
                print(f"demo: processes are left behind: {left}", file=sys.stderr)


def remove_run(folder: Path) -> None:
    """All of the folder but its lock."""
    for entry in folder.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
