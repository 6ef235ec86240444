"""Adds up the parts of tests/run.sh and prints the closing line.

summary.py REPORTS: REPORTS/*.xml are JUnit reports, REPORTS/parts has a line `NAME EXIT` a part. A part without a report counts
as one test; a part that ended badly although its report shows no failure counts as one failure more (a crash, a time-out). A case
of REPORTS/NAME.xml that has a report of its own, REPORTS/NAME/CASE.xml, is a unit-test program and counts by its own cases.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def read_report(path: Path) -> tuple[int, int, list[tuple[str, str]]]:
    """Passed, failed, (name, why) of each that was skipped."""
    passed, failed, skipped = 0, 0, []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname') or path.stem}.{case.get('name')}"
        skip = case.find("skipped")
        bad = (
            case.find("failure") is not None
            or case.find("error") is not None
            or case.get("status") == "fail"
        )
        own = path.with_suffix("") / f"{case.get('name')}.xml"
        if own.exists():
            own_passed, own_failed, own_skipped = read_report(own)
            passed, failed, skipped = (
                passed + own_passed,
                failed + own_failed,
                skipped + own_skipped,
            )
            if bad and own_failed == 0:
                failed += 1
                print(f"FAILED {name}: it ended badly after its cases")
        elif bad:
            failed += 1
            print(f"FAILED {name}")
        elif skip is not None or case.get("status") in ("notrun", "disabled"):
            skipped.append((name, (skip.get("message") if skip is not None else "") or ""))
        else:
            passed += 1
    return passed, failed, skipped


def main() -> int:
    reports = Path(sys.argv[1])
    passed = failed = 0
    skips = []
    for line in (reports / "parts").read_text().splitlines():
        name, code = line.split()
        report = reports / f"{name}.xml"
        part_failed = 0
        if report.exists():
            try:
                part_passed, part_failed, part_skips = read_report(report)
                passed, failed, skips = (
                    passed + part_passed,
                    failed + part_failed,
                    skips + part_skips,
                )
            except ElementTree.ParseError as error:
                part_failed, failed = 1, failed + 1
                print(f"FAILED {name}: unreadable report: {error}")
        elif code == "0":
            passed += 1
        if code != "0" and part_failed == 0:
            failed += 1
            print(f"FAILED {name}: exit {code}")
    for name, why in skips:
        print(f"SKIPPED {name}: {why}")
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
