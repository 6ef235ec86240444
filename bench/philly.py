"""Row `philly`: Philly's and Kalos' jobs under Muster and under simple policies, in the same simulator on the same fleet.

Philly's own pace loads its 2,816 GPUs with 13 %, Kalos' its 2,416 with 9 %: nobody waits then, whoever decides. Philly's jobs run
for up to 53 days, so compressing the times between them would only move their work behind the last submission: instead each
virtual cluster gets three sixteenths of its hosts (bench/fleets/philly-small), and the times are stretched a little, to 85 %
load; the first twenty days, which hold almost nothing, are left out. (Three gangs of 128 GPUs fit no such cluster and are
refused, whoever decides.) Kalos' jobs are short; its times are compressed to 85 % load. Every policy may place a job in every
cluster, its own first. Muster's tree guarantees each virtual cluster its own hosts; DRF weighs the queues by the same
guarantees. Kalos names no tenants: a queue for each size of gang, with guarantees for the
largest (bench/fleets/kalos-by-size.queues.yaml). `late` counts jobs that waited for more than ten minutes although their queue's
guarantee covered them, in the queue's order and beside what the queue held, each told; `late_with_room` those of them that hosts could
have held for so long beside what is not stopped for them (docs/decisions/145 and 150): the bar; `late_outside_the_entitled_set` those that had no place
in the entitled set for so long, whatever it held; `overtaken` those that younger ones of their queue, which aren't stopped for them,
kept waiting for so long in all: no bar, as none is promised (docs/decisions/041). Waits run to the first start; `delay` is all of a
job's time in which it could have worked and didn't. `simulated_day` is without the expected starts that musterd works out in each
decision (docs/simulating.md).
"""

import sys

from figures import at_least, at_most, figure, none
from simulate import DATA, at_once, late, overtaken, simulate, table

PEERS = ["fifo", "fifo-backfill", "drf"]


def compare(name: str, runs: dict[str, dict]) -> list[bool]:
    table(f"{name}:", runs)
    mine = runs["muster"]
    peers = {peer: runs[peer] for peer in PEERS}

    def of(key: str) -> dict[str, float]:
        return {peer: round(run["summary"][key], 1) for peer, run in peers.items()}

    waits, p99s, delays = of("wait_mean_s"), of("wait_p99_s"), of("delay_mean_s")
    wait, p99, delay = (
        round(mine["summary"][key], 1) for key in ("wait_mean_s", "wait_p99_s", "delay_mean_s")
    )
    bar = round(min(waits["fifo-backfill"] / 2, min(waits.values())), 1)
    used = {peer: round(100 * run["utilisation"], 1) for peer, run in peers.items()}
    mine_used = round(100 * mine["utilisation"], 1)
    return [
        at_most(f"philly.{name}.wait_mean", wait, "s", bar, waits),
        at_most(f"philly.{name}.wait_p99", p99, "s", min(p99s.values()), p99s),
        figure(
            f"philly.{name}.delay_mean",
            delay,
            "s",
            f"< {min(delays.values())}",
            delay < min(delays.values()),
            delays,
        ),
        at_least(f"philly.{name}.utilisation", mine_used, "%", max(used.values()), used),
        *late(
            f"philly.{name}", mine, {peer: run["summary"]["late"] for peer, run in peers.items()}
        ),
        none(f"philly.{name}.late_outside_the_entitled_set", mine["summary"]["left_out"], "jobs"),
        *overtaken(f"philly.{name}", mine),
        none(f"philly.{name}.unfinished", mine["summary"]["unfinished"], "jobs"),
    ]


def replay(trace, fleet: str, *options: str, queues: str) -> dict[str, dict]:
    def run(policies: list[str]) -> dict[str, dict]:
        return simulate(
            trace, fleet, policies, "--load", "85", "--report", "60s", *options, queues=queues
        )

    mine, peers = at_once(lambda: run(["muster"]), lambda: run(PEERS))
    return {**peers, **mine}


def main() -> int:
    quick = "--quick" in sys.argv
    philly, kalos = DATA / "philly" / "philly.csv.gz", DATA / "kalos" / "kalos319.csv"
    days = (50, 51) if quick else (40, 50)
    own_pace = simulate(
        philly,
        "philly",
        ["muster"],
        "--from",
        f"{days[0]}d",
        "--until",
        f"{days[1]}d",
        "--report",
        "60s",
        queues="philly",
    )["muster"]
    day_s = round(own_pace["real_s"] / (own_pace["last_submit_s"] / 86400), 2)
    table(f"own pace, day {days[0]} to {days[1]}:", {"muster": own_pace})
    held = [
        at_most("philly.simulated_day", day_s, "s", 2),
        none("philly.own_pace.late", own_pace["summary"]["late"], "jobs"),
    ]
    part = ["--from", "40d", "--until", "42d"] if quick else ["--from", "20d"]
    held += compare("philly", replay(philly, "philly-small", *part, queues="philly-small"))
    held += compare("kalos", replay(kalos, "kalos", "--queue-by-size", queues="kalos-by-size"))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
