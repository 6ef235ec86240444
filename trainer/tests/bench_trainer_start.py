"""Figure `start-time` of the trainer: from exec of two ranks to the end of their first collective, median.

    bench_trainer_start.py [--quick]        MUSTER_TRAINER_BIN names the binary

The peer is the least that a Python trainer does: import torch, join the group, one all-reduce.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import resume

PEER = "import torch, torch.distributed as d; d.init_process_group('gloo'); d.all_reduce(torch.zeros(1)); print('done', flush=True)"
BAR_S = 1.5


def trainer_start_s(trainer_bin: str, config: dict, folder: Path) -> float:
    with harness.Gang(trainer_bin, config, 2, folder) as gang:
        return gang.wait_for_line(b"first_collective_s=") - gang.started


def peer_start_s() -> float:
    port = str(harness.free_port())
    began = time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PEER],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=harness.clean_environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(2)
    ]
    said = ranks[0].stdout.readline()
    took_s = time.monotonic() - began
    for rank in ranks:
        rank.communicate()
    assert said == b"done\n", "the peer did not run"
    return took_s


def main() -> int:
    runs = 5 if "--quick" in sys.argv[1:] else 10
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    with tempfile.TemporaryDirectory(prefix="bench-start-") as name:
        folder = Path(name)
        config = resume.config(harness.make_tokens(folder / "tokens"), max_steps=1)
        times_s, peers_s = [], []
        for run in range(runs):
            times_s.append(trainer_start_s(trainer_bin, config, folder / str(run)))
            peers_s.append(peer_start_s())
            print(f"run {run + 1}: {times_s[-1]:.3f} s, peer {peers_s[-1]:.3f} s", flush=True)
    peer = {"torch.distributed in Python": round(statistics.median(peers_s), 3)}
    return harness.report(
        [
            harness.figure(
                "start-time.trainer", round(statistics.median(times_s), 3), "s", BAR_S, peer=peer
            )
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
