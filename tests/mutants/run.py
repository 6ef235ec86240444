"""Plants each bug of tests/mutants/*.patch in a copy of the tree and lets what finds it look for it.

    tests/mutants/run.py [--in security] [--seeds 2000] [--from SEED] [--replay] [NAME…]

--in: those of a folder below, which has a found.json of its own. found.json says of each bug what finds it: the fault simulator ("simulator", also of a bug that isn't named there), "sched-fuzz", or one test
("test": its program's target and its gtest filter). Those with seeds look from a first one on that is drawn and printed; --from gives it, to
look again. Prints one line of JSON a bug: the seed that found it, how many were tried, what it said, and how long that took; found.json
keeps them. --replay runs what is kept, and looks only for what its seed no longer finds, as the code has changed since. Exit 1 if a bug
wasn't found, or if the tree without any bug is called broken by what is kept.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "tests" / "mutants"
WORK = Path(os.environ.get("MUSTER_MUTANTS_DIR", ROOT / "build" / "mutants"))
TREE = WORK / "tree"
BUILD = TREE / "build" / "release"
PROGRAMS = {"simulator": "muster-sim", "sched-fuzz": "sched-fuzz"}


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


def build(targets: set[str]) -> None:
    """Of TREE; the compiler's cache knows what other checkouts have compiled."""
    jobs = os.environ.get("MUSTER_BUILD_JOBS", "2")
    script = "source deploy/common.sh; "
    if any(target.startswith("trainer_") for target in targets):
        script += (
            "grep -qs ^MUSTER_TRAINER:BOOL=ON build/release/CMakeCache.txt || cmake --preset release -DMUSTER_TRAINER=ON"
            ' -DMUSTER_PYTHON_ENV="$(muster_python_env)" > /dev/null || exit 1; '
        )
    script += (
        "[[ -e build/release/build.ninja ]] || cmake --preset release -DMUSTER_TRAINER=OFF > /dev/null || exit 1; "
        f"exec ninja -C build/release -j {jobs} {' '.join(sorted(targets))}"
    )
    done = subprocess.run(["bash", "-c", script], cwd=TREE, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-1000:])


def target_of(bug: dict) -> str:
    finder = bug.get("finder", "simulator")
    return bug["target"] if finder == "test" else PROGRAMS[finder]


def simulate(seed: int, seeds: int) -> dict:
    words = ["--seed", str(seed), "--seeds", str(seeds), "--until-failure", "--no-shrink"]
    done = subprocess.run(
        [BUILD / "bin" / "muster-sim", *words, "--config", HERE / "config"],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return {}
    lines = done.stderr.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("seed ")), None)
    if first is None:  # a run that ends the simulator counts, too
        return {"seed": seed, "says": f"the simulator itself ended: {done.stderr[-300:]}"}
    return {"seed": int(lines[first].split()[1].rstrip(",")), "says": lines[first + 1].strip()}


def fuzz(seed: int, seeds: int) -> dict:
    done = subprocess.run(
        [BUILD / "bin" / "sched-fuzz", str(seed), str(seed + seeds - 1)],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return {}
    line = next((line for line in done.stdout.splitlines() if line.startswith("seed ")), "")
    if not line:
        return {"seed": seed, "says": f"sched-fuzz itself ended: {done.stderr[-300:]}"}
    return {"seed": int(line.split()[1].rstrip(":")), "says": line.split(": ", 1)[1]}


def run_test(bug: dict) -> dict:
    words = [BUILD / "tests" / bug["target"], f"--gtest_filter={bug['test']}"]
    # An agent would start the shim that the caller's names, without the bug.
    environment = os.environ | {"MUSTER_BIN_DIR": str(BUILD / "bin")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if " 1 test from" not in done.stdout:
        sys.exit(f"{bug['target']}: there is no test {bug['test']}")
    return {} if done.returncode == 0 else {"says": f"{bug['test']} fails"}


def look(bug: dict, seed: int, seeds: int) -> dict:
    """What finds the bug in the tree as it is built, from this seed on; {} if nothing does."""
    finder = bug.get("finder", "simulator")
    if finder == "test":
        return run_test(bug)
    found = (simulate if finder == "simulator" else fuzz)(seed, seeds)
    return {**found, "tries": found["seed"] - seed + 1} if found else {}


def kept_bugs(folder: Path) -> dict:
    found = folder / "found.json"
    return json.loads(found.read_text()) if found.exists() else {}


def keep(folder: Path, name: str, bug: dict, result: dict) -> None:
    """Read anew: another run, with another MUSTER_MUTANTS_DIR, may keep its own meanwhile."""
    entry = {key: bug[key] for key in ("finder", "target", "test") if key in bug}
    entry = {"finder": "simulator", **entry}
    entry.update({key: result[key] for key in ("seed", "says", "tries") if key in result})
    found = {**kept_bugs(folder), name: entry}
    (folder / "found.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/mutants/run.py")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--in", dest="folder", default=".")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument(
        "--from", dest="first", type=int, default=random.SystemRandom().randrange(1, 1 << 48)
    )
    parser.add_argument("--replay", action="store_true")
    args = parser.parse_args()
    folder = HERE / args.folder
    patches = sorted(p for p in folder.glob("*.patch") if not args.names or p.stem in args.names)
    bugs = {patch.stem: kept_bugs(folder).get(patch.stem, {}) for patch in patches}
    print(f"new seeds from {args.first} on; again: --from {args.first}", file=sys.stderr)
    copy_tree()
    build({target_of(bug) for bug in bugs.values()})
    ok = True
    if args.replay:
        for name, bug in bugs.items():
            if (
                result := look(bug, bug["seed"], 1)
                if "seed" in bug
                else run_test(bug)
                if "test" in bug
                else {}
            ):
                print(f"without any bug, by what finds {name}: {result['says']}", file=sys.stderr)
                ok = False
    for patch in patches:
        bug = bugs[patch.stem]
        began = time.time()
        subprocess.run(["patch", "-p1", "-s", "-i", patch], cwd=TREE, check=True)
        try:
            build({target_of(bug)})
            built_s = time.time() - began
            began = time.time()
            result = look(bug, bug["seed"], 1) if args.replay and "seed" in bug else {}
            if result:
                result["tries"] = bug.get("tries", result["tries"])
            result = result or look(bug, args.first, args.seeds)
        finally:
            subprocess.run(["patch", "-p1", "-s", "-R", "-i", patch], cwd=TREE, check=True)
        print(
            json.dumps(
                {
                    "bug": patch.stem,
                    "finder": bug.get("finder", "simulator"),
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
            keep(folder, patch.stem, bug, result)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
