"""Runs what failed once more, alone, when all parts of tests/run.sh are over: docs/decisions/095-run-again-and-named.md.

again.py REPORTS: reads the parts' JUnit reports as summary.py does; writes REPORTS/NAME.again.xml (and REPORTS/NAME.again/ of the cases
of unit-test programs), in which summary.py looks up what failed. More than MOST failures are no accident: nothing is run again then.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 3
LIMIT_S = 600


def is_bad(case: ElementTree.Element) -> bool:
    return (
        case.find("failure") is not None
        or case.find("error") is not None
        or case.get("status") == "fail"
    )


def failed_cases(report: Path) -> list[ElementTree.Element]:
    try:
        return [
            case for case in ElementTree.parse(report).getroot().iter("testcase") if is_bad(case)
        ]
    except (OSError, ElementTree.ParseError):
        return []


def command(name: str, cases: list[ElementTree.Element], again: Path) -> list[str] | None:
    """What runs these cases of a part; none: it is no part of single tests."""
    if name.startswith("unit-"):
        programs = [case.get("name") for case in cases]
        return ["tests/unit.sh", name.removeprefix("unit-"), str(again), *programs]
    if name in ("lint", "arrows"):
        return None
    top = "python/" if name == "python" else ""  # a project of its own
    ids = [
        f"{top}{case.get('classname').replace('.', '/')}.py::{case.get('name')}" for case in cases
    ]
    python = os.environ["MUSTER_PYTHON"]
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(again), *ids]


def main() -> int:
    reports = Path(sys.argv[1]).resolve()
    names = [line.split()[0] for line in (reports / "parts").read_text().splitlines()]
    failed = {name: failed_cases(reports / f"{name}.xml") for name in names}
    if not 0 < sum(len(cases) for cases in failed.values()) <= MOST:
        return 0
    for name, cases in failed.items():
        again = reports / f"{name}.again.xml"
        words = command(name, cases, again) if cases else None
        if words is None:
            continue
        print(f"== {name}, again: {', '.join(case.get('name') for case in cases)}", flush=True)
        try:
            subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            again.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
