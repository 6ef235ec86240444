"""What tests/lint.sh runs, once its tools are installed: each tool's findings, a line each, and a JUnit report."""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
BUILD = ROOT / "build" / "release"
# What GCC takes and clang doesn't, or what would need a library of clang's own.
GCC_ONLY = re.compile(r"^-(fopenmp|Winvalid-pch|Wno-interference-size|Wno-maybe-uninitialized)$")
INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)
FINDING = re.compile(r"^(?P<place>[^\s:]+:\d+):\d+: (?:warning|error): (?P<text>.*)$")


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


def git(*words: str) -> list[str]:
    return run("git", *words).stdout.split("\n")[:-1]


def sources(*patterns: str) -> list[str]:
    """Files that git knows, and new ones that it doesn't ignore."""
    found = git("ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns)
    return sorted({name for name in found if (ROOT / name).is_file()})


def is_shell(name: str) -> bool:
    with open(ROOT / name, "rb") as file:
        return re.match(rb"#!.*\b(ba)?sh\b", file.readline(200)) is not None


def clang_format(options) -> list[str]:
    files = sources("*.cc", "*.h", "*.cu")
    mode = ["-i"] if options.fix else ["--dry-run"]
    done = run(str(TOOLS / "clang-format"), *mode, *files)
    wrong = sorted(
        {line.split(":")[0] for line in done.stderr.splitlines() if "-Wclang-format" in line}
    )
    if done.returncode != 0 and not wrong:
        return [done.stderr.strip()]
    return [f"{name}: not as clang-format lays it out" for name in wrong]


def ruff_format(options) -> list[str]:
    done = run(str(TOOLS / "ruff"), "format", *([] if options.fix else ["--check"]), ".")
    if done.returncode == 0:
        return []
    wrong = [line for line in done.stdout.splitlines() if line.startswith("Would reformat")]
    return wrong or [(done.stdout + done.stderr).strip()]


def ruff_check(options) -> list[str]:
    fix = ["--fix"] if options.fix else []
    done = run(str(TOOLS / "ruff"), "check", "--quiet", "--output-format=concise", *fix, ".")
    return [] if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()


def shellcheck(options) -> list[str]:
    scripts = [name for name in sources() if name.endswith(".sh") or is_shell(name)]
    done = run(str(TOOLS / "shellcheck"), "--external-sources", "--format=gcc", *scripts)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()


def changed(base: str | None) -> dict[str, set[int]]:
    """The lines that differ from `base`, by file; uncommitted changes are among them."""
    if base is None:
        head = git("rev-parse", "HEAD")
        for main in ("origin/main", "main"):
            base = next(iter(git("merge-base", "HEAD", main)), None)
            if base is not None:
                break
        if base is None or [base] == head:
            base = next(iter(git("rev-parse", "--quiet", "--verify", "HEAD~1")), None)
    lines: dict[str, set[int]] = {}
    name = ""
    for line in git("diff", "--unified=0", "--no-color", base) if base is not None else []:
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            lines.setdefault(name, set()).update(range(first, first + count))
    for name in git("ls-files", "--others", "--exclude-standard"):
        lines[name] = set(range(1, 1 + (ROOT / name).read_bytes().count(b"\n")))
    return lines


def each_alone(entry: dict) -> list[dict]:
    """What a build compiles as one file (MUSTER_UNITY), a file each."""
    path = Path(entry["file"])
    if path.parent.name != "together" or not path.exists():
        return [entry]
    sources = re.findall(r'^#include "(.*)"$', path.read_text(), re.MULTILINE)
    alone = [str(ROOT / one) for one in sources]
    return [
        {**entry, "file": one, "command": entry["command"].replace(entry["file"], one)}
        for one in alone
    ]


def compile_commands(folder: Path) -> list[str]:
    """Writes into `folder` the build's commands as clang takes them; the files, relative to the root."""
    entries = []
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        entries += each_alone(entry)
    files = []
    for entry in entries:
        words = entry["command"].split()
        entry["command"] = " ".join(word for word in words if not GCC_ONLY.match(word))
        path = Path(entry["file"])
        if path.is_relative_to(ROOT) and not path.is_relative_to(BUILD):
            files.append(path.relative_to(ROOT).as_posix())
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    return sorted(set(files))


class Cache:
    """What clang-tidy found before, by what it read: the command, its own settings, the file and
    what that includes of this project. Headers of the system and of libraries are taken as given."""

    def __init__(self, commands: Path):
        self.folder = TOOLS.parent / "tidy"
        self.folder.mkdir(exist_ok=True)
        for entry in self.folder.iterdir():
            if entry.stat().st_mtime < time.time() - 30 * 86400:
                entry.unlink(missing_ok=True)
        self.commands = {
            one["file"]: one["command"].replace(str(ROOT), "")
            for one in json.loads(commands.read_text())
        }
        self.contents: dict[Path, bytes] = {}
        # A generated header changes with what it is made from.
        self.common = b"".join(self.content(ROOT / one) for one in sources("*.proto"))
        self.common += (ROOT / ".clang-tidy").read_bytes()

    def content(self, path: Path) -> bytes:
        if path not in self.contents:
            self.contents[path] = path.read_bytes() if path.is_file() else b""
        return self.contents[path]

    def entry(self, name: str) -> Path:
        key = hashlib.sha256(self.common + self.commands[str(ROOT / name)].encode())
        seen, ahead = set(), [ROOT / name]
        while ahead:
            path = ahead.pop()
            if path in seen:
                continue
            seen.add(path)
            key.update(f"{path.relative_to(ROOT)}\0".encode() + self.content(path))
            for include in INCLUDE.findall(self.content(path)):
                ahead += [where / include.decode() for where in (ROOT, path.parent)]
        return self.folder / key.hexdigest()


def tidy_one(folder: str, name: str, fix: bool) -> set[str] | None:
    """None where it could not look at all."""
    done = run(
        str(TOOLS / "clang-tidy"), "-p", folder, "--quiet", *(["--fix"] if fix else []), name
    )
    if "file not found [clang-diagnostic-error]" in done.stdout:  # generated by a build
        return None
    found = set()
    for line in done.stdout.splitlines():
        match = FINDING.match(line)
        if match is not None:
            place = match["place"].removeprefix(f"{ROOT}/")
            found.add(f"{place}: {match['text']}")
    if done.returncode != 0 and not found:
        found.add(f"{name}: clang-tidy ended badly: {done.stderr.strip()[-300:]}")
    return found


def in_lines(finding: str, lines: dict[str, set[int]]) -> bool:
    """Whether it is about one of the lines, or about none."""
    match = re.match(r"(\S+):(\d+): ", finding)
    return match is None or int(match[2]) in lines.get(match[1], set())


def clang_tidy(options) -> list[str]:
    if not (BUILD / "compile_commands.json").exists():
        wrong = "clang-tidy looks at nothing before a build: deploy/build.sh"
        print(f"lint: {wrong}")
        return [wrong] if options.all else []
    with tempfile.TemporaryDirectory() as folder:
        files = compile_commands(Path(folder))
        if not options.all:
            lines = changed(options.base)
            stems = {re.sub(r"\.(h|cc)$", "", name) for name in lines}
            files = [name for name in files if name.removesuffix(".cc") in stems]
        ends = time.monotonic() + (float("inf") if options.all else options.tidy_seconds)
        cache = Cache(Path(folder) / "compile_commands.json")
        left = []

        def look(name: str) -> set[str]:
            entry = cache.entry(name)
            if entry.exists() and not options.fix:
                return set(json.loads(entry.read_text()))
            findings = tidy_one(folder, name, options.fix) if time.monotonic() < ends else None
            if findings is None:
                left.append(name)
            elif not options.fix:
                part = entry.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps(sorted(findings)))
                part.rename(entry)
            return findings or set()

        # One at a time where it changes files: two may want to change the same header.
        with ThreadPoolExecutor(1 if options.fix else os.cpu_count()) as pool:
            found = set().union(*pool.map(look, files))
    if not options.all:  # the others are for whoever looks at all
        found = {one for one in found if in_lines(one, lines)}
    print(f"lint: clang-tidy looked at {len(files) - len(left)} of {len(files)} files")
    if left:
        print(
            f"lint: not looked at, as time ran out or a build has to come first: {' '.join(left)}"
        )
    if options.all:
        found |= {f"{name}: a build has to make what it includes" for name in left}
    return sorted(found)


CHECKS = {
    "clang-format": clang_format,
    "ruff-format": ruff_format,
    "ruff": ruff_check,
    "shellcheck": shellcheck,
    "clang-tidy": clang_tidy,
}


def write_report(path: Path, results: dict[str, tuple[list[str], float]]) -> None:
    suite = ElementTree.Element("testsuite", name="lint", tests=str(len(results)))
    for name, (findings, seconds) in results.items():
        case = ElementTree.SubElement(
            suite, "testcase", classname="lint", name=name, time=f"{seconds:.1f}"
        )
        if findings:
            failure = ElementTree.SubElement(case, "failure", message=f"{len(findings)} findings")
            failure.text = "\n".join(findings)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/lint.sh")
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--base")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--tidy-seconds", type=float, default=120)
    options = parser.parse_args()
    results = {}
    for name, check in CHECKS.items():
        began = time.monotonic()
        findings = check(options)
        results[name] = (findings, time.monotonic() - began)
        print("\n".join([*findings, f"lint: {name}: {len(findings)} findings"]), flush=True)
    if options.report is not None:
        write_report(options.report, results)
    return 1 if any(findings for findings, _ in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
