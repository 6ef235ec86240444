"""Plants each bug of tests/mutants/*.patch in a copy of the tree and lets the fault simulator look for it.

    tests/mutants/run.py [--seeds 2000] [--replay] [NAME…]

Prints one line of JSON a bug: the first seed that found it, what it said, and how long that took; found.json keeps both. --replay runs
the seeds of found.json, and looks from seed 1 on only for what its seed no longer finds, as the code has changed since. Exit 1 if a bug
wasn't found, or if the tree without any bug is called broken by the kept seeds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "tests" / "mutants"
FOUND = HERE / "found.json"
WORK = Path(os.environ.get("MUSTER_MUTANTS_DIR", ROOT / "build" / "mutants"))
TREE = WORK / "tree"
BUILD = TREE / "build" / "release"


def copy_tree() -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if not (ROOT / name).is_file():
            continue
        target = TREE / name
        content = (ROOT / name).read_bytes()
        if not target.exists() or target.read_bytes() != content:  # else ninja would build it again
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def build() -> None:
    """muster-sim of TREE; the compiler's cache knows what other checkouts have compiled."""
    jobs = os.environ.get("MUSTER_BUILD_JOBS", "2")
    script = (
        "source deploy/common.sh; [[ -e build/release/build.ninja ]] || cmake --preset release -DMUSTER_TRAINER=OFF -DMUSTER_DAEMONS=OFF > /dev/null || exit 1; "
        f"exec ninja -C build/release -j {jobs} muster-sim"
    )
    done = subprocess.run(["bash", "-c", script], cwd=TREE, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-1000:])


def look(seed: int, seeds: int) -> dict:
    """The first seed from `seed` on that fails, with what it said; {} if none does. A run that ends the simulator counts, too."""
    done = subprocess.run(
        [
            BUILD / "bin" / "muster-sim",
            "--seed",
            str(seed),
            "--seeds",
            str(seeds),
            "--until-failure",
            "--no-shrink",
            "--config",
            HERE / "config",
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return {}
    lines = done.stderr.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("seed ")), None)
    if first is None:
        return {"seed": seed, "says": f"the simulator itself ended: {done.stderr[-300:]}"}
    return {"seed": int(lines[first].split()[1].rstrip(",")), "says": lines[first + 1].strip()}


def kept_seeds() -> dict:
    return json.loads(FOUND.read_text()) if FOUND.exists() else {}


def keep(name: str, result: dict) -> None:
    """Read anew: another run, with another MUSTER_MUTANTS_DIR, may keep its own meanwhile."""
    found = {**kept_seeds(), name: {"seed": result["seed"], "says": result["says"]}}
    FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/mutants/run.py")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--replay", action="store_true")
    args = parser.parse_args()
    patches = sorted(p for p in HERE.glob("*.patch") if not args.names or p.stem in args.names)
    found = kept_seeds()
    copy_tree()
    build()
    sound = (
        {seed: look(seed, 1) for seed in sorted({f["seed"] for f in found.values()})}
        if args.replay
        else {}
    )
    ok = not any(sound.values())
    for patch in patches:
        began = time.time()
        subprocess.run(["patch", "-p1", "-s", "-i", patch], cwd=TREE, check=True)
        try:
            build()
            built_s = time.time() - began
            began = time.time()
            kept = found.get(patch.stem) if args.replay else None
            result = look(kept["seed"], 1) if kept else {}
            result = result or look(1, args.seeds)
        finally:
            subprocess.run(["patch", "-p1", "-s", "-R", "-i", patch], cwd=TREE, check=True)
        print(
            json.dumps(
                {
                    "bug": patch.stem,
                    **result,
                    "found": bool(result),
                    "build_s": round(built_s, 1),
                    "look_s": round(time.time() - began, 1),
                }
            ),
            flush=True,
        )
        ok = ok and bool(result)
        if result:
            keep(patch.stem, result)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
