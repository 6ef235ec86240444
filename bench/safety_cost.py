#!/usr/bin/env python3
"""Row `safety-cost`: durable starts with the check of every plan (Validate) and without it, the same build.

    safety_cost.py [--quick]

40,000 one-slot jobs on 1,000 simulated hosts of 8 slots, as row durable-rates starts them. What can be left out at run time is the check of
plans; commits that are conditional on epoch and instance, checksums and claims can't. By the CPU time of a start, as the machine has other
work; the runs take turns, and the median of each kind counts.
"""

import statistics
import sys

from figures import figure, measure


def run(jobs: int, *more: str) -> dict:
    result = measure(
        "bench_durable_rates",
        "STORE",
        *more,
        jobs=jobs,
        outstanding=4096,
        hosts=1000,
        runtime_ms=100,
        wait_ends=True,
    )
    result["cpu_us"] = 1e6 * (result["cpu_user_s"] + result["cpu_system_s"]) / result["started"]
    way = "without" if more else "with"
    print(
        f"{way} the check: {result['cpu_us']:.0f} us of CPU a start, {result['starts_per_s']} starts/s",
        flush=True,
    )
    return result


def main() -> int:
    quick = "--quick" in sys.argv
    jobs, times = (8_000, 2) if quick else (40_000, 5)
    checked, unchecked = [], []
    for _ in range(times):
        checked.append(run(jobs))
        unchecked.append(run(jobs, "--unchecked"))

    def median(runs: list, key: str) -> float:
        return statistics.median(r[key] for r in runs)

    cost = median(checked, "cpu_us") / median(unchecked, "cpu_us") - 1
    figure(
        "durable starts with the check", round(median(checked, "starts_per_s")), "1/s", "-", True
    )
    figure("durable starts without", round(median(unchecked, "starts_per_s")), "1/s", "-", True)
    ok = figure(
        "what the check adds to the CPU time of a start",
        round(100 * cost, 1),
        "%",
        "≤ 10",
        cost <= 0.10,
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
