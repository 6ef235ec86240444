"""The form of the house: layout, lints, arrows, citations, test code, and how long functions and files are.

A function above 80 lines or a file above 600 says why at the place, in a comment that begins with "Long:", above the
function or among the file's first ten lines. Tests and their scaffolding are apart.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from figures import ROOT, at_most, none

FUNCTION_LINES, FUNCTIONS_LONG = 80, 5
FILE_LINES, FILES_LONG = 600, 4
PRODUCT = (
    "agent",
    "bench",
    "cli",
    "common",
    "deploy",
    "exporter",
    "network",
    "python",
    "sandbox",
    "scheduler",
    "sim",
    "trainer",
)
CODE = re.compile(r"\.(cc|h|cu|py)$")
TESTS = re.compile(r"(^|/)(tests?|testing)/|_test\.(cc|h)$")
REASON = re.compile(r"(//|#) Long: \S")


def files() -> list[str]:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(listed.splitlines()) if (ROOT / name).is_file())


def product(name: str) -> bool:
    return name.split("/")[0] in PRODUCT and bool(CODE.search(name)) and not TESTS.search(name)


def failures(report: Path) -> list[tuple[str, ElementTree.Element]]:
    """The cases of a JUnit report that failed, by name."""
    return [
        (case.get("name"), bad)
        for case in ElementTree.parse(report).getroot().iter("testcase")
        for bad in (*case.iter("failure"), *case.iter("error"))
    ]


def lint(quick: bool) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        form = ["--tidy-seconds", "20"] if quick else ["--all"]
        words = ["tests/lint.sh", "--report", report.name, *form]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            return done.stderr.splitlines() or ["tests/lint.sh ended badly"]
        return [line for _, bad in failures(Path(report.name)) for line in bad.text.splitlines()]


def broken_rules(file: str) -> list[str]:
    """The tests of a file that fail, each with what it found."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*words, "--junitxml", report.name, file], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        return [f"{name}: {bad.get('message')}" for name, bad in failures(Path(report.name))]


def test_code(names: list[str]) -> list[str]:
    wrong = []
    for name in filter(product, names):
        if name.startswith("bench/"):
            continue  # measures what it builds
        text = (ROOT / name).read_text()
        found = re.findall(r'#include [<"](?:gtest|gmock)/|#include ".*/testing/.*"', text)
        wrong += [f"{name}: {line}" for line in found]
        if re.search(r"(?m)^(?:import|from) (?:pytest|unittest)\b", text):
            wrong.append(f"{name}: imports a test's tools")
    return wrong


def long_functions(names: list[str]) -> list[tuple[str, bool]]:
    """Each function above the limit, and whether it says why."""
    lizard = lint_tool("lizard")
    words = ["--csv", "-l", "cpp", "-l", "python", *filter(product, names)]
    done = subprocess.run([lizard, *words], cwd=ROOT, capture_output=True, text=True)
    found = []
    for line in done.stdout.splitlines():
        match = re.match(r'(?:\d+,){4}(\d+),"[^"]*","([^"]*)","([^"]*)",.*,(\d+),\d+$', line)
        if match is None or match[3].endswith("alignas"):  # a class of these has no body
            continue
        length, name, function, begin = int(match[1]), match[2], match[3], int(match[4])
        if length > FUNCTION_LINES:
            above = comment_above((ROOT / name).read_text().splitlines(), begin)
            told = f"{name}:{begin}: {function} has {length} lines"
            found.append((told, bool(REASON.search(above))))
    return found


def comment_above(lines: list[str], begin: int) -> str:
    first = begin - 1
    while first > 0 and re.match(r"\s*(//|#|template|@)", lines[first - 1]):
        first -= 1
    return "\n".join(lines[first : begin - 1])


def long_files(names: list[str]) -> list[tuple[str, bool]]:
    found = []
    for name in filter(product, names):
        lines = (ROOT / name).read_text().splitlines()
        if len(lines) > FILE_LINES:
            reason = bool(REASON.search("\n".join(lines[:10])))
            found.append((f"{name}: {len(lines)} lines", reason))
    return found


def lint_tool(name: str) -> str:
    said = subprocess.run(
        ["bash", "-c", "source deploy/common.sh && muster_lint_env"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return f"{said.stdout.strip()}/bin/{name}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/house.py")
    parser.add_argument("--quick", action="store_true", help="clang-tidy on changed files only")
    options = parser.parse_args()
    names = files()
    held = True
    for what, findings in (
        ("layout and lints", lint(options.quick)),
        ("arrows", broken_rules("tests/arrows.py")),
        ("links and citations", broken_rules("tests/documents.py")),
        ("test code among production files", test_code(names)),
    ):
        print("\n".join(findings), end="\n" if findings else "")
        held &= none(what, len(findings), "findings")
    for what, long, most in (
        (f"functions above {FUNCTION_LINES} lines", long_functions(names), FUNCTIONS_LONG),
        (f"files above {FILE_LINES} lines", long_files(names), FILES_LONG),
    ):
        for told, reason in long:
            print(told if reason else f"{told}, and no reason")
        held &= at_most(what, len(long), "", most)
        bare = sum(not reason for _, reason in long)
        held &= none(f"{what} without a reason", bare, "findings")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
