#!/usr/bin/env python3
"""Row `hostile-jobs`: what one user's jobs try against their host, its agent and another user (tests/system/attacks), one after the other.

    hostile_jobs.py [--quick]

Each attack says what it gained, or is judged by what it changed. The control lets the same attacks run where everything is root's: those that
succeed there are refused by nothing else than running as the owner. Then holes (tests/mutants/security, as HOLES says) are planted in a copy of
the tree, built, and attacked: each has to be found. --quick: the tree as it is, and the control.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, all_of, at_least, none, say_failed
from hostile_jobs import SCENARIOS, attack_all, attack_names, hostile_host
from local_system import Failed

FEWEST, FEWEST_IN_CONTROL = 60, 50
HOLES = ("exports-published-as-root", "groups-kept", "new-privileges-allowed", "no-private-mounts")


def attack(bin_dir: Path, names: list[str], control: bool = False) -> dict[str, str]:
    with hostile_host(bin_dir, control) as host:
        return attack_all(host, names)


def planted(names: list[str]) -> int:
    """How many of the holes were found."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants" / "run.py")
    mutants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutants)
    mutants.copy_tree()
    mutants.build({"musterd", "muster", "muster-agent", "muster-shim"})
    found = 0
    for hole in HOLES:
        patch = ROOT / "tests" / "mutants" / "security" / f"{hole}.patch"
        subprocess.run(["patch", "-p1", "-s", "-i", patch], cwd=mutants.TREE, check=True)
        try:
            mutants.build({"muster-agent", "muster-shim"})
            gained = attack(mutants.BUILD / "bin", names)
        finally:
            subprocess.run(["patch", "-p1", "-s", "-R", "-i", patch], cwd=mutants.TREE, check=True)
        print(f"{hole}: {len(gained)} attacks succeed: {', '.join(gained)}", flush=True)
        found += bool(gained)
    return found


def main() -> int:
    if os.geteuid() != 0:
        return say_failed(Failed("needs root, to be several users"))
    programs, names = attack_names(), [*attack_names(), *SCENARIOS]
    try:
        gained = attack(BIN, names)
        control = attack(BIN, programs, control=True)
        found = len(HOLES) if "--quick" in sys.argv else planted(programs)
    except Failed as error:
        return say_failed(error)
    for name, what in gained.items():
        print(f"{name}: {what}")
    ok = at_least("attacks of a job", len(names), "", FEWEST)
    ok &= none("of them that succeed", len(gained))
    ok &= at_least(
        "that succeed where everything runs as root (control)",
        len(control),
        f"of {len(programs)}",
        FEWEST_IN_CONTROL,
    )
    if "--quick" not in sys.argv:
        ok &= all_of("planted holes found", found, len(HOLES))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
