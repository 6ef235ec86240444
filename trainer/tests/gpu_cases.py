"""Runs the trainer's tests on this machine's GPU, each case in a process of its own, and prints one line a case as it ends.

    gpu_cases.py [--list] [--case TEXT]... [--cpu-only] [--jobs N] [--limit S]

    --list       prints the cases' names
    --case TEXT  only cases whose name has this text
    --cpu-only   leaves out what needs a GPU, instead of counting it as skipped
    --jobs N     so many cases at a time; each takes a few GiB of the GPU at most
    --limit S    seconds that a case may take; 300 if not given

In a bundle (deploy/gpu-bundle.sh) it finds the programs beside itself, and torch's libraries where `import torch` does; in a
checkout after deploy/build.sh it takes build/release. A case that crashes or takes too long is one that failed: the others run
all the same. The last line counts; exit 1 if any failed, or none passed.
"""

import argparse
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUNDLE = HERE.parent if (HERE.parent / "bundle").is_file() else None
LIMIT_S = 300
TRAINING = ("test_gpu.py", "test_bundle.py")


def programs() -> tuple[Path, Path]:
    """The trainer and its unit tests."""
    if BUNDLE:
        return BUNDLE / "bin/muster-trainer", BUNDLE / "bin/trainer_engine_test"
    build = HERE.parent.parent / "build/release"
    return build / "bin/muster-trainer", build / "tests/trainer_engine_test"


def has_gpu() -> bool:
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    except OSError:
        return False
    return (
        cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    )


def environment() -> dict[str, str]:
    trainer, _ = programs()
    env = os.environ | {
        "MUSTER_TRAINER_BIN": str(trainer),
        "MUSTER_PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if not BUNDLE:
        return env
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise SystemExit(
            f"{sys.executable} has no torch; start this with a python that has the one named in {BUNDLE}/bundle"
        )
    packages = Path(spec.origin).parent.parent
    folders = [
        packages / "torch/lib",
        packages / "nvidia/cu13/lib",
        packages / "nvidia/nccl/lib",
        BUNDLE / "lib",
    ]
    env["LD_LIBRARY_PATH"] = ":".join(
        [*map(str, folders), *filter(None, [env.get("LD_LIBRARY_PATH")])]
    )
    more = [BUNDLE / "peer"] if (BUNDLE / "peer").is_dir() else []
    if importlib.util.find_spec("pytest") is None:
        more.append(BUNDLE / "site")
    env["PYTHONPATH"] = ":".join([*filter(None, [env.get("PYTHONPATH")]), *map(str, more)])
    return env | {
        "MUSTER_TOKENS": str(BUNDLE / "tokens"),
        "MUSTER_PAIRS": str(BUNDLE / "pairs/tokens"),
    }


def say_of(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    return f"killed by signal {-code} ({signal.Signals(-code).name})"


def how_far(folder: Path) -> str:
    """The last that its ranks said."""
    said = [path for path in sorted(folder.rglob("*")) if path.suffix in (".err", ".out")]
    return "\n".join(
        f"{path.relative_to(folder)}: {path.read_text(errors='replace').strip()[-300:]}"
        for path in said
    )


class Cases:
    """What can be run here; a case is a name and a command."""

    def __init__(self, limit_s: float = LIMIT_S):
        self.env, self.limit_s = environment(), limit_s
        trainer, tests = programs()
        for program in (trainer, tests):
            if not os.access(program, os.X_OK):
                raise SystemExit(f"{program} isn't there; run deploy/build.sh first")
        self.all = {
            "loads": [str(trainer), "--version"],
            "loads: tests": [str(tests), "--gtest_list_tests"],
        }
        self.all |= self._unit_tests(tests) | self._training()

    def _unit_tests(self, program: Path) -> dict[str, list[str]]:
        listed = subprocess.run(
            [program, "--gtest_list_tests"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if listed.returncode != 0:
            print(
                f"{program} doesn't start ({say_of(listed.returncode)}): {listed.stderr.strip()[-2000:]}"
            )
            return {}
        suite, cases = "", {}
        for line in listed.stdout.splitlines():
            name = line.split("#")[0]
            if not line.startswith(" "):
                suite = name.strip()
                continue
            test = suite + name.strip()
            if (
                test.endswith("/gpu") or suite == "Flash."
            ):  # a process for each: after an error a process can't use the GPU
                cases[f"gpu: {test}"] = [str(program), f"--gtest_filter={test}"]
                continue
            way = test.rpartition("/")[2] if "/" in name else ""
            pattern = suite + ("*" if not way or way.strip().isdigit() else f"*/{way}")
            cases[f"cpu: {pattern}"] = [str(program), f"--gtest_filter={pattern}"]
        return cases

    def _training(self) -> dict[str, list[str]]:
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        cases = {}
        for file in TRAINING:
            listed = subprocess.run(
                [*pytest, "--collect-only", str(HERE / file)],
                env=self.env,
                cwd=HERE,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            found = [line for line in listed.stdout.splitlines() if "::" in line]
            if listed.returncode != 0 or not found:
                print(
                    f"the tests of {file} can't be listed: {(listed.stdout + listed.stderr).strip()[-2000:]}"
                )
                found = [f"{file}::"]
            where = "gpu" if file == "test_gpu.py" else "cpu"
            for node in found:
                name = node.split("::", 1)[1]
                cases[f"{where}: {name or file}"] = [
                    *pytest,
                    str(HERE / file) + ("::" + name if name else ""),
                ]
        return cases

    def run(self, name: str) -> str:
        """ "" if it passed, or what was wrong."""
        with (
            tempfile.TemporaryDirectory(prefix="muster-gpu-") as folder,
            tempfile.TemporaryFile() as said,
        ):
            process = subprocess.Popen(
                self.all[name],
                env=self.env | {"TMPDIR": folder},
                cwd=HERE,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(self.limit_s)
                wrong = "" if code == 0 else say_of(code)
            except subprocess.TimeoutExpired:
                wrong = f"took more than {self.limit_s:g} s\n{how_far(Path(folder))}"
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # with what it may have left behind
                except ProcessLookupError:
                    pass
                process.wait()
            said.seek(0)
            text = said.read().decode(errors="replace")
            if not wrong and name.startswith("gpu:") and "skipped" in text.lower():
                wrong = "skipped, although there is a GPU"
            return f"{wrong}\n{text[-6000:]}" if wrong else ""


def told(cases: Cases, name: str) -> bool:
    """Runs it and prints its line; whether it passed."""
    began = time.monotonic()
    wrong = cases.run(name)
    line = f"{'FAILED' if wrong else 'passed':<8} {time.monotonic() - began:>6.1f}s  {name}\n"
    why = "    " + wrong.replace("\n", "\n    ") + "\n" if wrong else ""
    print(line + why, end="", flush=True)
    return not wrong


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--list", action="store_true")
    options.add_argument("--case", action="append", default=[])
    options.add_argument("--cpu-only", action="store_true")
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--limit", type=float, default=LIMIT_S)
    chosen = options.parse_args()
    cases = Cases(chosen.limit)
    names = [
        name
        for name in cases.all
        if (not chosen.case or any(text in name for text in chosen.case))
        and not (chosen.cpu_only and name.startswith("gpu:"))
    ]
    if chosen.list:
        print("\n".join(names))
        return 0
    if BUNDLE:
        print((BUNDLE / "bundle").read_text().strip(), flush=True)
    gpu = has_gpu()
    print(f"GPU: {'yes' if gpu else 'none'}", flush=True)
    wanted = [name for name in names if gpu or not name.startswith("gpu:")]
    for name in names:
        if name not in wanted:
            print(f"{'skipped':<8} {'':>7}  {name}", flush=True)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        ended = [pool.submit(told, cases, name) for name in wanted]
        passed = sum(one.result() for one in as_completed(ended))
    failed, skipped = len(wanted) - passed, len(names) - len(wanted)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
