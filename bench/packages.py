#!/usr/bin/env python3
"""Row `packages`: Debian packages built, checked (lintian, hardening flags), installed on a bare machine that systemd booted, upgraded while three jobs run, purged.

    packages.py [--quick] [--no-trainer]

Needs root, and what deploy/setup.sh --packages installs. The two releases are the same commit's: what is shown is what an upgrade
does to what runs. --quick: units, and lintian and hardening flags of the packages that lie in build/packages.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from booted_machine import BootedMachine
from figures import ROOT, at_most, figure

OUT = ROOT / "build" / "packages"
OLD, NEW = "0.1.0+row1", "0.1.0+row2"
# Nothing of it is bound when it starts, and what calls the stack's check can't be told from the C library's own.
STATIC = "muster-shim"
LONGEST_RESTART_S = 1  # who has a certificate may end musterd
BARS = {"musterd.service": 3.0, "muster-agent.service": None}  # an agent starts others' programs
FACTS = {
    "user": "muster:/var/lib/muster",
    "before_configuration": "inactive;",
    "joined": "muster-agent.service is enabled, and up as lab/h1: "
    "4 cpu-slot, 4 CPUs, 4GiB of memory, 10GiB of disk, declared",
    "enabled_and_up": "enabled up",
    "shut_in": "CapEff: 0000000000000000 NoNewPrivs: 1 Seccomp: 2 ",
    "runtime": "(False, False)",
    "upgraded": f"{NEW} ",
    "units_started_anew": "2 of 2",
    "same_pids": "yes",
    "same_pids_after_a_restart": "yes",
    "states": "RUNNING 1;",
    "job_files_kept": "3 of 3",
    "left": "0",
    "store": "stays",
}


def build(version: str, trainer: bool) -> list[Path]:
    words = [ROOT / "deploy" / "packages.sh", "--version", version]
    if not trainer:
        words.append("--no-trainer")
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return [Path(line) for line in done.stdout.split()]


def lint(debs: list[Path]) -> bool:
    done = subprocess.run(["lintian", "--allow-root", *debs], capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="")
    errors = [line for line in done.stdout.splitlines() if line.startswith("E:")]
    holds = not errors and done.returncode in (0, 2) and bool(debs)
    return figure("lintian's errors", len(errors), f"in {len(debs)} packages", 0, holds)


def exposure(unit: str) -> float:
    path = ROOT / "deploy" / "systemd" / unit
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", path],
        capture_output=True,
        text=True,
    )
    return float(re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)[1])


def flags_missing(program: Path) -> list[str]:
    """Of an ELF file; of a library no fortified function is asked for, as it may use none that could be."""
    done = subprocess.run(
        ["readelf", "-W", "-h", "-l", "-d", "--dyn-syms", program],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {"RELRO": r"^ *GNU_RELRO ", "PIE": r"^ *Type: +DYN "}
    if program.name != STATIC:
        wanted["BIND_NOW"] = r"\(BIND_NOW\)|\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW"
        wanted["stack protector"] = r" __stack_chk_fail(@|$)"
        if ".so" not in program.name:
            wanted["fortify"] = r" __\w+_chk(@|$)"
    return [name for name, line in wanted.items() if not re.search(line, done.stdout, re.MULTILINE)]


def hardened(debs: list[Path]) -> bool:
    seen, without = [], []
    for deb in debs:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
            for path in sorted(Path(folder).rglob("*")):
                if not path.is_file() or path.is_symlink():
                    continue
                with open(path, "rb") as file:
                    if file.read(4) != b"\x7fELF":
                        continue
                seen.append(path.name)
                if missing := flags_missing(path):
                    without.append(f"{path.name}: {', '.join(missing)}")
    print("\n".join(without))
    unit = f"of {len(seen)}: {', '.join(seen)}"
    holds = not without and "musterd" in seen and STATIC in seen
    return figure("programs without a hardening flag", len(without), unit, 0, holds)


def restart_s() -> float:
    """How long systemd waits before it starts musterd again."""
    text = (ROOT / "deploy" / "systemd" / "musterd.service").read_text()
    value, unit = re.search(r"^RestartSec=([0-9.]+)(ms|s)?$", text, re.MULTILINE).groups()
    return float(value) / (1000 if unit == "ms" else 1)


def units() -> bool:
    held = [at_most("musterd comes back after", restart_s(), "s", LONGEST_RESTART_S)]
    for unit, bar in BARS.items():
        value = exposure(unit)
        text = "-" if bar is None else f"<= {bar}"
        held.append(figure(f"exposure of {unit}", value, "", text, bar is None or value <= bar))
    return all(held)


def scene(old: list[Path], new: list[Path]) -> dict[str, str]:
    # The environment that muster-trainer-setup would make there is this machine's.
    python = Path(os.environ["MUSTER_PYTHON"]).parent.parent
    with BootedMachine(ROOT, {python: "muster/python"}) as machine:
        for name, debs in (("old", old), ("new", new)):
            folder = machine.root / "muster" / "debs" / name
            folder.mkdir(parents=True)
            for deb in debs:
                shutil.copy(deb, folder)
        # What Debian has of it is fetched now; once booted the machine has no network.
        fetch = (
            "apt-get install -q -y --no-install-recommends --download-only /muster/debs/old/*.deb"
        )
        if machine.run(f"apt-get update -q > /dev/null && {fetch} > /dev/null")[0] != 0:
            raise SystemExit("Debian's packages can't be had")
        machine.boot()
        code, _, said = machine.run("bash bench/packages_scene.sh")
    print(f"the scene ended with {code}")
    lines = [line.split(" ", 2) for line in said.splitlines() if line.startswith("FACT ")]
    return {name: value for _, name, value in lines}


def full(trainer: bool) -> bool:
    old, new = build(OLD, trainer), build(NEW, trainer)
    wanted = {"installed": f"{len(new)} of {len(new)}"} | FACTS
    if trainer:
        wanted["trainer"] = "muster-trainer 0.1.0 prepare: 0"
    held = [units(), lint(new), hardened(new)]
    facts = scene(old, new)
    for name, value in wanted.items():
        found = facts.get(name, "missing")
        held.append(
            figure(name.replace("_", " "), found.strip(), "", value.strip(), found == value)
        )
    return all(held)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-trainer", action="store_true")
    args = parser.parse_args()
    if args.quick:
        debs = sorted(OUT.glob(f"*_{NEW}_*.deb")) or sorted(OUT.glob("*.deb"))
        held = [units(), *([lint(debs), hardened(debs)] if debs else [])]
        return 0 if all(held) else 1
    return 0 if full(not args.no_trainer) else 1


if __name__ == "__main__":
    sys.exit(main())
