"""Runs the rows of the benchmark tables (bench/run.sh); keeps bench/RESULTS.md."""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
BIN = os.environ.get("MUSTER_BIN_DIR", ROOT / "build" / "release" / "bin")  # bench/run.sh sets it

# slug -> (what, command, seconds it may take in full)
ROWS = {
    "house": (
        "the form of the sources: layout, lints, arrows, citations, test code, long functions and files",
        [sys.executable, "bench/house.py"],
        7200,
    ),
    "demo": (
        "deploy/demo.sh to its summary on a bare machine, and again there",
        [sys.executable, "bench/demo.py"],
        2400,
    ),
    "tests": (
        "tests/run.sh, as CI calls it, on a bare machine, and again with its compiler cache",
        [sys.executable, "bench/tests.py"],
        5400,
    ),
    "submit-latency": (
        "submit to first process running, idle system, 200 one-worker jobs",
        [sys.executable, "bench/submit_latency.py"],
        300,
    ),
    "track": (
        "a job's reports in a real MLflow server that is stopped for 60 s, beside an untracked job; 5 preemptions against an undisturbed run",
        [sys.executable, "bench/track.py"],
        1200,
    ),
    "dpo": (
        "50 steps on preferences against TRL's DPOTrainer: loss and rewards, the whole model and with LoRA",
        [sys.executable, "bench/dpo.py"],
        900,
    ),
    "reward": (
        "50 steps of reward models on preferences against TRL's RewardTrainer: loss, rewards, and the scores that transformers gives with the exports",
        [sys.executable, "bench/reward.py"],
        900,
    ),
    "resume": (
        "60 steps at once against SIGKILL at 23 and 4 -> 2 ranks at 41",
        [sys.executable, "trainer/tests/bench_resume.py"],
        900,
    ),
    "export-parity": (
        "50 steps against a plain transformers loop; export loads there",
        [sys.executable, "trainer/tests/bench_export_parity.py"],
        900,
    ),
    "parity-families": (
        "50 steps at lr 1e-4 against transformers: Llama 2 and 3, Mistral, Qwen2, Qwen2.5, Qwen3, Phi-3, Phi-4-mini, Gemma 2 and 3, fp32 and bf16",
        [sys.executable, "trainer/tests/bench_parity_families.py"],
        1800,
    ),
    "elastic-bits": (
        "40 steps on 1, 2, 3, 4 and 8 ranks, and of layouts on 1, 2 and 4 units, and resized on the way, with deterministic: elastic: norms and weights bit for bit",
        [sys.executable, "trainer/tests/bench_elastic_bits.py"],
        1800,
    ),
    "warm-restart": (
        "1 GiB of state resized 4 -> 2 -> 4 ranks under musterd, from stop to the next step's end: from memory, and by way of the disk",
        [sys.executable, "bench/warm_restart.py"],
        1800,
    ),
    "resume-reshard": (
        "60 steps at once against stopped and resumed: same world, 4 -> 2 -> 3 ranks, another ZeRO stage",
        [sys.executable, "trainer/tests/bench_resume_reshard.py"],
        900,
    ),
    "layouts": (
        "gradients of each parameter and 20 steps against transformers, with models that ranks share out: every family without experts, each layout of several, and one of 16 ranks",
        [sys.executable, "trainer/tests/bench_layouts.py"],
        3600,
    ),
    "moe": (
        "models with experts, in one process and shared out, against transformers: experts without tokens, all tokens on one, the loss that balances",
        [sys.executable, "trainer/tests/bench_moe.py"],
        1800,
    ),
    "reshard-all": (
        "checkpoints of 23 layouts of ranks, tensor or context parallel, in pipelines, with experts shared out or none of it, each read and saved again in each of the others",
        [sys.executable, "trainer/tests/bench_reshard.py"],
        900,
    ),
    "pipeline-order": (
        "orders of pipelines of 2 to 8 ranks and 1 to 32 micro-batches, in a model of ranks that wait for messages",
        [sys.executable, "trainer/tests/bench_pipeline.py"],
        120,
    ),
    "hf-roundtrip": (
        "Hugging Face -> checkpoint -> Hugging Face; a LoRA adapter in peft",
        [sys.executable, "trainer/tests/bench_hf_roundtrip.py"],
        900,
    ),
    "kill-checkpoint": (
        "SIGKILL at 100 random points while a checkpoint is written",
        [sys.executable, "trainer/tests/bench_kill_checkpoint.py"],
        1800,
    ),
    "peer-death": (
        "one of 3 ranks killed, or stopped: when the others end",
        [sys.executable, "trainer/tests/bench_peer_death.py"],
        600,
    ),
    "packing": (
        "documents packed into rows against one a row, and against transformers",
        [sys.executable, "trainer/tests/bench_packing.py"],
        600,
    ),
    "zero3-bitwise": (
        "ZeRO-3 on 2 ranks against one process with the same two micro-batches",
        [sys.executable, "trainer/tests/bench_stages.py", "zero3-bitwise"],
        900,
    ),
    "stages": (
        "ZeRO stages 0-3 and hybrid sharding on 4 ranks against 1 rank",
        [sys.executable, "trainer/tests/bench_stages.py", "stages"],
        900,
    ),
    "toggles": (
        "recompute, LoRA's zero adapter, slots, poison, offload, split masters: on against off",
        [sys.executable, "trainer/tests/bench_stages.py", "toggles"],
        1800,
    ),
    "quantised": (
        "weights and moments in few bits against bitsandbytes: NF4 bit for bit, int8 AdamW, QLoRA beside transformers and peft; products in fp8 against quantising and dequantising in Python",
        [sys.executable, "bench/quantised.py"],
        1800,
    ),
    "trainer-memory": (
        "peak memory of a run of 17 M parameters against transformers', and against `muster-trainer estimate`, of each stage and layout",
        [sys.executable, "trainer/tests/bench_memory.py"],
        900,
    ),
    "trainer-speed": (
        "tokens a second against transformers eager, compiled and autocast; AdamW against ATen's fused kernel",
        [sys.executable, "trainer/tests/bench_speed.py"],
        2400,
    ),
    "trainer-start": (
        "start of 2 ranks to the end of their first step, resumed from a checkpoint of 1 GiB",
        [sys.executable, "trainer/tests/bench_start_checkpoint.py"],
        600,
    ),
    "gpu": (
        "where a GPU is: 7 (or 3) billion parameters against transformers compiled with Liger's loss, offload, LoRA and QLoRA of 8 billion",
        [sys.executable, "trainer/tests/bench_gpu.py"],
        3600,
    ),
    "gpu-bundle": (
        "a bundle of the trainer and its GPU tests: its size, its cases for CPUs in a root without compiler and network, a crash",
        [sys.executable, "bench/gpu_bundle.py"],
        1800,
    ),
    "prepare": (
        "muster-trainer prepare against tokenizers alone on all cores; the same output for 1, 2 and 7 processes",
        [sys.executable, "trainer/tests/bench_prepare.py"],
        900,
    ),
    "wlb": (
        "rows of like work against rows of like length (WLB-LLM), predicted",
        [os.environ.get("MUSTER_BIN_DIR", "build/release/bin") + "/muster-bench-wlb"],
        600,
    ),
    "cp-wlb": (
        "rows that ranks share out (context parallelism) against one rank; each document cut for itself against rows cut as they are, predicted",
        [sys.executable, "trainer/tests/bench_context.py"],
        900,
    ),
    "gang-32k": (
        "one gang of 32,000 workers on 1,000 hosts of 32 CPUs, Decide and Validate",
        [f"{BIN}/bench_place", "gang-32k"],
        300,
    ),
    "onehost-10k": (
        "10,000 one-host tasks of mixed sizes on 10,000 hosts, one Decide",
        [f"{BIN}/bench_place", "onehost-10k"],
        300,
    ),
    "openb": (
        "GPU allocation at 130 % load on Alibaba's 2023 GPU trace, V against FGD",
        ["python3", "bench/openb.py"],
        5400,
    ),
    "start-time": (
        "trainer to its first collective; musterd with an empty store to its first answer",
        [sys.executable, "bench/start_time.py"],
        300,
    ),
    "philly": (
        "Philly and Kalos under Muster and simple policies, one simulator",
        [sys.executable, "bench/philly.py"],
        3600,
    ),
    "federation": (
        "Philly's jobs on four clusters, one queue tree against a static split",
        [sys.executable, "bench/federation.py"],
        3600,
    ),
    "shockwave": (
        "TACC-32: Gavel's row reproduced, then Muster on the same jobs",
        [sys.executable, "bench/shockwave.py"],
        600,
    ),
    "durable-rates": (
        "durable submissions; starts end to end through store and simulated agents",
        [sys.executable, "bench/durable_rates.py"],
        600,
    ),
    "process-rate": (
        "/bin/true as one-worker jobs to completion through musterd and one agent with 64 slots",
        [sys.executable, "bench/process_rate.py"],
        600,
    ),
    "arrays": (
        "10,000 members of 0.1 s on 64 slots: submit, list, cancel, and their rate beside Slurm's array",
        [sys.executable, "bench/arrays.py"],
        900,
    ),
    "independent": (
        "independent workers killed, preempted, made fewer and more 200 times: the others' processes stay, quota is exact",
        [sys.executable, "bench/independent.py"],
        1200,
    ),
    "score": (
        "rows scored by independent workers that are killed and preempted: none lost, none doubled; memory, answers and speed beside the bare engine",
        [sys.executable, "bench/score.py"],
        3600,
    ),
    "python-runtime": (
        "transformers' Trainer and Lightning with MusterCallback: killed, preempted, resized, resumed; losses and step time beside the undisturbed",
        [sys.executable, "bench/python_runtime.py"],
        1200,
    ),
    "ray": (
        "tasks with ray: beside bare symmetric-run, 50 clusters of one user on one host, 2 -> 4 -> 2 nodes with one head, logs after the end",
        [sys.executable, "bench/ray_row.py"],
        3600,
    ),
    "two-tower": (
        "two towers on TorchRec and Lightning: Recall@10 on two workers, tables shared out by rows, killed, preempted, resumed; step time; items as Parquet",
        [sys.executable, "bench/two_tower.py"],
        1800,
    ),
    "tune": (
        "trials that are killed and preempted, none lost; how many find the trainer's best settings on a measured grid, beside Optuna; a model left out",
        [sys.executable, "bench/tune.py"],
        900,
    ),
    "tune-search": (
        "a ranking model found by muster tune against five after their papers at the same FLOPs a sample: normalised entropy on unseen rows, three searches",
        [sys.executable, "bench/tune_search.py"],
        1800,
    ),
    "profile": (
        "20 programs that hang, each in another way: is the call that doesn't return named; and what a profile costs the steps that it is of",
        [sys.executable, "bench/profile_row.py"],
        600,
    ),
    "dev": (
        "environments to develop in with a real JupyterLab: jobs on the devices of one, a busy kernel without a browser, an idle one's release, requests without the token",
        [sys.executable, "bench/dev.py"],
        900,
    ),
    "kai-scale": (
        "KAI Scheduler's published scale tests on 500 simulated hosts, submission to started",
        [sys.executable, "bench/kai.py"],
        600,
    ),
    "kueue-baseline": (
        "Kueue's baseline generator, 15,000 workloads in real time",
        [sys.executable, "bench/kueue.py", "baseline"],
        900,
    ),
    "kueue-tas": (
        "Kueue's topology-aware generator, 640 hosts, 15,000 workloads in real time",
        [sys.executable, "bench/kueue.py", "tas"],
        900,
    ),
    "kueue-large": (
        "Kueue's large-scale generator, 50,000 workloads in 1,000 queues in real time",
        [sys.executable, "bench/kueue.py", "large"],
        900,
    ),
    "scale-500k": (
        "Decide in the steady state of 500,000 GPUs, 100 clusters, 62,500 hosts, 1,031 queues, 20,000 waiting gangs, 100 events a step",
        [sys.executable, "bench/scale_500k.py"],
        1800,
    ),
    "sched-fuzz": (
        "random trees, fleets and events: the rules of docs/scheduling.md after each step",
        [sys.executable, "bench/sched_fuzz.py", "rules"],
        3600,
    ),
    "determinism": (
        "the same random events give the same plans bit for bit",
        [sys.executable, "bench/sched_fuzz.py", "determinism"],
        1800,
    ),
    "sim-seeds": (
        "scheduler, agents, shims and three users against faults on a virtual clock (so without TLS), seed by seed",
        [sys.executable, "bench/sim_seeds.py"],
        14400,
    ),
    "hostile-jobs": (
        "what a job tries against its host, the agent and another user, as root's agent runs it; the same as root; four planted holes",
        [sys.executable, "bench/hostile_jobs.py"],
        1800,
    ),
    "planted-security": (
        "bugs of running as the owner, each planted, built and looked for by the test that names it",
        [sys.executable, "bench/planted.py", "security"],
        5400,
    ),
    "packages": (
        "Debian packages: built, checked by lintian and for hardening flags, installed on a bare machine, upgraded with three jobs running, purged",
        [sys.executable, "bench/packages.py"],
        7200,
    ),
    "secrets": (
        "secrets given to jobs in every way, and all that others may read searched for them; a planted breach",
        [sys.executable, "bench/secrets_found.py"],
        300,
    ),
    "containers": (
        "programs in an image made by mmdebstrap: ends of every kind, ddp over two hosts, a resume; what a start costs",
        [sys.executable, "bench/containers.py"],
        600,
    ),
    "rotation": (
        "1,000 rotations of the authority with certificates of seconds, under load",
        [sys.executable, "bench/rotation.py"],
        7200,
    ),
    "revocation": (
        "host, user, login token, join token, authority: how long after it a call or a stream still counts",
        [sys.executable, "bench/revocation.py"],
        900,
    ),
    "login-oidc": (
        "logins by two real identity providers in what stands for a browser; forged and stale tokens at the same door",
        [sys.executable, "bench/login_oidc.py"],
        900,
    ),
    "ten-hosts": (
        "ten machines (namespaces) join by one line each; a gang trains over all; two clusters, three users, a death, a cut, a rotation, a move",
        [sys.executable, "bench/ten_hosts.py"],
        900,
    ),
    "tls-cost": (
        "a submission's latency and the rate of durable submissions over mutual TLS against the Unix socket; 5,000 agents over TLS",
        [sys.executable, "bench/tls_cost.py"],
        1800,
    ),
    "hostile-peers": (
        "HTTP/2 and TLS as hostile peers speak it, with a certificate and without one; half handshakes, 10,000 connections",
        [sys.executable, "bench/hostile_peers.py"],
        5400,
    ),
    "authorization": (
        "every RPC and route, callers by uid, certificate and token, what is theirs, what isn't and what isn't there, against a model; five planted holes",
        [sys.executable, "bench/authorization.py"],
        1800,
    ),
    "planted-trainer": (
        "bugs of slices, stages and their sums that others had, each planted, built and looked for by the test that names it",
        [sys.executable, "bench/planted.py", "trainer"],
        5400,
    ),
    "planted-bugs": (
        "bugs planted in a copy of the tree, looked for by the simulator, the fuzzer and tests",
        [sys.executable, "bench/planted.py", "bugs"],
        7200,
    ),
    "kill-scheduler": (
        "SIGKILL to musterd with submissions and ends in flight: one user over a Unix socket; three in two teams over TLS",
        [sys.executable, "bench/kills.py", "scheduler"],
        5400,
    ),
    "kill-agent": (
        "SIGKILL to agents while their processes run: one user over a Unix socket; three in two teams over TLS",
        [sys.executable, "bench/kills.py", "agent"],
        1800,
    ),
    "kill-shim": (
        "SIGKILL to a shim of a gang over two hosts: one user over a Unix socket; three in two teams over TLS",
        [sys.executable, "bench/kills.py", "shim"],
        900,
    ),
    "partitions": (
        "an agent cut off in every way, shorter and longer than the lease, with a task of each when_unreachable; 60 % of the agents at once: one user over a Unix socket; three in two teams over TLS",
        [sys.executable, "bench/partitions.py"],
        1800,
    ),
    "store-faults": (
        "each call of the store's disk fails once, with and without the power; full disks under a real musterd",
        [sys.executable, "bench/store_faults.py"],
        1200,
    ),
    "replay": (
        "the journals of the demo and of simulated runs, decided again",
        [sys.executable, "bench/replay.py"],
        3600,
    ),
    "classify": (
        "why processes ended, told from 200 log tails and more that weren't seen when the rules were written, and from 66 of users' own mistakes",
        [
            f"{BIN}/bench-classify",
            "bench/failures/held-out.jsonl",
            "--mistakes",
            "bench/failures/mistakes.jsonl",
        ],
        60,
    ),
    "llama3-failures": (
        "Llama 3's 419 interruptions in 54 days on 2,048 hosts of 8 GPUs, replayed under the real engine",
        [f"{BIN}/bench_llama3"],
        3600,
    ),
    "fuzzers": (
        "what is read from outside, with libFuzzer, ASAN and UBSAN",
        [sys.executable, "bench/fuzzers.py"],
        86400,
    ),
    "safety-cost": (
        "durable starts with the check of every plan and without",
        [sys.executable, "bench/safety_cost.py"],
        1200,
    ),
    "newcomer": (
        "what people who were new to it stumbled over, each point with the tests that fail where it is still so",
        [sys.executable, "bench/newcomer.py"],
        300,
    ),
    "ledger": (
        "the ledger's classes sum to capacity after each step",
        [sys.executable, "bench/sched_fuzz.py", "ledger"],
        3600,
    ),
}


def machine() -> str:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return (
        f"{os.cpu_count()} cores {model.group(1) if model else platform.machine()}, {int(memory.group(1)) / 2**20:.0f} GiB, "
        f"Linux {platform.release()}, no GPU"
        if not Path("/dev/nvidia0").exists()
        else f"{os.cpu_count()} cores, GPU"
    )


def commit() -> str:
    def git(*words):
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    changed = [
        line for line in git("status", "--porcelain").splitlines() if "bench/RESULTS.md" not in line
    ]
    return (git("rev-parse", "--short=12", "HEAD") or "no commit") + (
        " with uncommitted changes" if changed else ""
    )


def record(slug: str, what: str, command: str, figures: list[dict], seconds: float) -> None:
    """Replaces the slug's section of RESULTS.md; sections stay in the order of ROWS."""
    text = (
        RESULTS.read_text()
        if RESULTS.exists()
        else "# Measured\n\nEach section is written by `bench/run.sh SLUG --record`; the newest run replaces the one before.\n"
    )
    head, *sections = re.split(r"(?m)^(?=## )", text)
    kept = {s.split("\n", 1)[0][3:].strip(): s for s in sections}
    if "--quick" in command and f"`bench/run.sh {slug}`" in kept.get(slug, ""):
        print(
            f"bench/run.sh: not recorded: {RESULTS.name} holds a full run of {slug}",
            file=sys.stderr,
        )
        return
    rows = "".join(
        f"| {f['figure']} | {f['value']} {f['unit']} | {json.dumps(f['peer'], ensure_ascii=False) if f.get('peer') is not None else '–'} "
        f"| {f.get('bar') if f.get('bar') is not None else '–'} | {'**no**' if not f['holds'] else 'yes' if f.get('bar') not in (None, '-') else '–'} |\n"
        for f in figures
    )
    kept[slug] = (
        f"## {slug}\n\n{what}. `{command}`, {date.today().isoformat()}, {seconds:.0f} s, commit {commit()}, {machine()}.\n\n"
        f"| figure | ours | peer | bar | holds |\n|---|---|---|---|---|\n{rows}\n"
    )
    order = [*ROWS, *(k for k in kept if k not in ROWS)]
    RESULTS.write_text(head.rstrip("\n") + "\n\n" + "".join(kept[k] for k in order if k in kept))


class Said:
    """What a row's program prints, shown as it comes: its figures, and whether it broke off."""

    def __init__(self):
        self.figures, self.broke_off = [], False

    def hear(self, line: str) -> None:
        print(line, end="", flush=True)
        if not line.startswith("{"):
            return
        try:
            said = json.loads(line)
        except ValueError:
            return
        if "figure" in said:
            self.figures.append(said)
        self.broke_off |= "error" in said

    def hear_errors(self, lines) -> None:
        for line in lines:
            print(line, end="", file=sys.stderr, flush=True)
            self.broke_off |= line.startswith("Traceback (most recent call last)")

    def is_whole(self, code: int) -> bool:
        """A figure that falls short ends a row with 1, too; after an error figures are missing, and may be those that count."""
        if code == 0:
            return True
        return code == 1 and not self.broke_off and not all(f["holds"] for f in self.figures)


def run_program(command: list, limit_s: float) -> tuple[Said, int]:
    """What the program printed, and how it ended."""
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(
            [str(ROOT / "bench"), str(ROOT / "trainer" / "tests"), str(ROOT / "tests" / "system")]
        ),
    )
    said = Said()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        limit = threading.Timer(limit_s, process.terminate)
        errors = threading.Thread(target=said.hear_errors, args=(process.stderr,), daemon=True)
        limit.start()
        errors.start()
        try:
            for line in process.stdout:
                said.hear(line)
            code = process.wait()
            errors.join(10)  # something that it left behind may hold the pipe
        except BaseException:
            process.terminate()
            raise
        finally:
            limit.cancel()
    return said, code


def main() -> int:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    for_program = words[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="bench/run.sh",
        usage="%(prog)s list | SLUG [--quick] [--record] [-- OPTIONS OF THE ROW'S PROGRAM]",
    )
    parser.add_argument("slug")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(words[:at])
    if options.slug == "list":
        for slug, (what, _, _) in ROWS.items():
            print(f"{slug:16} {what}")
        return 0
    if options.slug not in ROWS:
        print(f"bench/run.sh: no row {options.slug}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    what, command, limit_s = ROWS[options.slug]
    given = [*(["--quick"] if options.quick else []), *for_program]
    command = [*command, *given]
    print(f"machine: {machine()}\ncommit: {commit()}", flush=True)
    began = time.monotonic()
    said, code = run_program(command, limit_s)
    figures = said.figures
    if figures and not said.is_whole(code):
        figures.append(
            {
                "figure": "the row came to its end",
                "value": f"no (exit {code})",
                "unit": "",
                "peer": None,
                "bar": "yes",
                "holds": False,
            }
        )
    if not figures:
        print(f"bench/run.sh: {options.slug} gave no figure (exit {code})", file=sys.stderr)
        return 1
    if options.record:
        words = [
            *(["--quick"] if options.quick else []),
            *(["--", *for_program] if for_program else []),
        ]
        record(
            options.slug,
            what,
            shlex.join(["bench/run.sh", options.slug, *words]),
            figures,
            time.monotonic() - began,
        )
    return 0 if code == 0 and all(f["holds"] for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
