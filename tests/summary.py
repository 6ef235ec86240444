"""Adds up the parts of tests/run.sh and prints the closing line.

summary.py REPORTS: REPORTS/*.xml are JUnit reports, REPORTS/parts has a line `NAME EXIT` a part. A part without a report counts
as one test; a part that ended badly although its report shows no failure counts as one failure more (a crash, a time-out). A case
of REPORTS/NAME.xml that has a report of its own, REPORTS/NAME/CASE.xml, is a unit-test program and counts by its own cases. What
failed and passed in REPORTS/NAME.again.xml (again.py) counts as passed, and is named.
"""

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from again import is_bad

TESTS_FAILED = ("1", "8")  # of pytest and ctest; others: it did not come to its end


@dataclass
class Counts:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)  # failed at first
    skipped: list[tuple[str, str]] = field(default_factory=list)  # with why

    def add(self, other: "Counts") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.again += other.again
        self.skipped += other.skipped


def cases_of(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).getroot().iter("testcase"))


def name_of(case: ElementTree.Element, report: Path) -> str:
    part = report.name.removesuffix(".xml").removesuffix(".again")
    return f"{case.get('classname') or part}.{case.get('name')}"


def is_skipped(case: ElementTree.Element) -> bool:
    return case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")


def passed_again(report: Path) -> set[str]:
    again = report.with_suffix(".again.xml")
    if not again.exists():
        return set()
    return {
        name_of(case, again)
        for case in cases_of(again)
        if not is_bad(case) and not is_skipped(case)
    }


def read_report(report: Path) -> Counts:
    counts = Counts()
    good_again = passed_again(report)
    for case in cases_of(report):
        name = name_of(case, report)
        own = report.with_suffix("") / f"{case.get('name')}.xml"
        if is_bad(case) and name in good_again:
            counts.again.append(name)
            own_again = report.with_suffix(".again") / own.name
            counts.add(read_report(own_again) if own_again.exists() else Counts(passed=1))
        elif own.exists():
            counts_of_own = read_report(own)
            counts.add(counts_of_own)
            if is_bad(case) and not counts_of_own.failed:
                counts.failed.append(f"{name}: it ended badly after its cases")
        elif is_bad(case):
            counts.failed.append(name)
        elif is_skipped(case):
            skip = case.find("skipped")
            counts.skipped.append((name, (skip.get("message") if skip is not None else "") or ""))
        else:
            counts.passed += 1
    return counts


def read_part(reports: Path, name: str, code: str) -> Counts:
    report = reports / f"{name}.xml"
    counts = Counts()
    if report.exists():
        try:
            counts = read_report(report)
        except ElementTree.ParseError as error:
            counts.failed.append(f"{name}: unreadable report: {error}")
    elif code == "0":
        counts.passed += 1
    explained = counts.failed or (counts.again and code in TESTS_FAILED)
    if code != "0" and not explained:
        counts.failed.append(f"{name}: exit {code}")
    return counts


def main() -> int:
    reports = Path(sys.argv[1])
    counts = Counts()
    for line in (reports / "parts").read_text().splitlines():
        counts.add(read_part(reports, *line.split()))
    for name, why in counts.skipped:
        print(f"SKIPPED {name}: {why}")
    for name in counts.again:
        print(f"FAILED AT FIRST, passed when it was run again: {name}")
    for name in counts.failed:
        print(f"FAILED {name}")
    print(f"{counts.passed} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped")
    return 1 if counts.failed or counts.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
