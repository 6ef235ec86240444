"""Adds up the parts of tests/run.sh and prints the closing line.

summary.py REPORTS: REPORTS/*.xml are JUnit reports, REPORTS/parts has a line `NAME EXIT` a part. A part without a report counts
as one test; a part that ended badly although its report shows no failure counts as one failure more (a crash, a time-out).
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def read_report(path: Path) -> tuple[int, int, list[tuple[str, str]]]:
    passed, failed, skipped = 0, 0, []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname') or path.stem}.{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
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
                passed, failed, skips = passed + part_passed, failed + part_failed, skips + part_skips
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
