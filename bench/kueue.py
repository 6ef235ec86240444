"""Rows `kueue-baseline`, `kueue-tas` and `kueue-large`: Kueue's performance generators through the real engine and a real store,
at speed 1.

    kueue.py baseline|tas|large [--quick]

--quick divides the counts of workloads by ten; bars on wall time then scale with the work, times to admission are told only.
"""

import os
import re
import sys
from pathlib import Path

from figures import ROOT, at_least, at_most, figure, measure

DATA = Path(os.environ.get("MUSTER_DATA", ROOT.parent / "shared" / "data")) / "kueue"
# Seconds that the whole would take if quota were never idle: a short run's bar scales with it.
WORK_S = {"baseline": 66, "tas": 66, "large": 4}
# Seconds at most, Kueue's as published; and into what part of its rangespec's longest average time to admission we want to come:
# a quarter for the baseline; for the others, which must not exceed the rangespec either, the whole.
BARS = {"baseline": (70, 351, 4), "tas": (75, 401, 1), "large": (10, 1179, 1)}


def ranges(name: str) -> tuple[float, dict[str, float]]:
    """The rangespec's least usage in percent, and its longest average time to admission by class in milliseconds."""
    usage, admission, section = 0.0, {}, ""
    for line in (DATA / f"{name}.rangespec.yaml").read_text().splitlines():
        line = line.split("#")[0].rstrip()
        if line and not line.startswith(" "):
            section = line.rstrip(":")
        elif match := re.fullmatch(r"\s+([\w-]+):\s+([\d._]+)", line):
            value = float(match[2].replace("_", ""))
            if section == "clusterQueueClassesMinUsage":
                usage = value
            elif section == "wlClassesMaxAvgTimeToAdmissionMs":
                admission[match[1]] = value
    return usage, admission


def main() -> int:
    name, quick = sys.argv[1], "--quick" in sys.argv
    least_usage, longest = ranges(name)
    wall_bar, kueue_s, part = BARS[name]
    measured = measure(
        "bench_kueue",
        DATA / f"{name}.generator.yaml",
        "STORE",
        *(["--divide", "10"] if quick else []),
    )
    row = f"kueue-{name}"
    peer = None if quick else {"Kueue, published": f"{kueue_s} s"}
    bar = wall_bar if not quick else round(measured["work_s"] * wall_bar / WORK_S[name], 1)
    held = [
        at_most(f"{row}.wall", measured["wall_s"], "s", bar, peer),
        at_least(f"{row}.usage", measured["usage_percent"], "%", least_usage),
    ]
    for workload, value_ms in sorted(measured["admission_ms"].items()):
        most = longest[workload] / part
        held.append(
            figure(
                f"{row}.admission.{workload}",
                value_ms,
                "ms",
                f"<= {most:g}",
                value_ms <= most,
                None if quick else {"rangespec": f"{longest[workload]:g} ms"},
            )
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
