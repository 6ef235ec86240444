"""Row scale-500k: Decide in the steady state of a federation of 100 clusters with 500,000 GPUs."""

import subprocess
import sys

from figures import BIN, at_most, figure


def run(*words: str) -> dict[str, float]:
    text = subprocess.run(
        [str(BIN / "bench-scale"), *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    print(" ".join(words) + "  " + text, end="", flush=True)
    return {key: float(value) for key, value in (word.split("=") for word in text.split())}


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    small = run("--tenth", "--steps", "100" if quick else "300")
    large = run("--steps", "30" if quick else "300")
    growth = large["decide_mean_ms"] / small["decide_mean_ms"]
    mix = f"{large['running']:.0f} gangs on {100 * large['held']:.0f} % of the GPUs, {large['waiting']:.0f} wait; CPU time of one thread"
    held = [
        at_most(f"Decide, p99 ({mix})", large["decide_p99_ms"], "ms", 80, places=1),
        at_most("Decide, median", large["decide_p50_ms"], "ms", 50, places=1),
        figure("Decide, p99 by the clock on the wall", round(large["decide_wall_p99_ms"], 1), "ms"),
        at_most("Decide's mean here / at a tenth of the size", growth, "x", 12, places=1),
        figure(
            "peak memory, bench and all",
            round(large["rss_mib"] / 1024, 2),
            "GiB",
            "<= 4",
            large["rss_mib"] <= 4096,
        ),
        figure("Validate, p99", round(large["validate_p99_ms"], 1), "ms"),
        figure("Apply of a step's 100 events, p99", round(large["apply_p99_ms"], 1), "ms"),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
