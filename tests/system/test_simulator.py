"""muster-sim as people run it, and `muster simulate` in front of it: what it says of jobs that it leaves out, Kueue's generators, the plots."""

import importlib.util
import json
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CLUSTERS = """
skus: {t4s: {flavour: T4, gpus: 2, cpus: 8, memory: 64GiB, declared: true}}
storages: {s: {path: /s, clusters: [lab]}}
clusters:
  - {name: lab, sku: t4s, job_storage: s, topology: {b: {r: ["h[1-4]"]}}}
"""
TWO_CLUSTERS = """
skus: {box: {flavour: h100, gpus: 4, cpus: 16, memory: 64GiB, declared: true}}
storages: {s: {path: /s, clusters: [near, far]}}
clusters:
  - {name: near, sku: box, job_storage: s, topology: {b: {r: ["n[1-4]"]}}}
  - {name: far, sku: box, job_storage: s, topology: {b: {r: ["f[1-4]"]}}}
"""
QUEUES = """
queues:
  - {name: prod, quota: {h100: {guarantee: 16}}}
  - {name: scratch}
"""
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
GENERATOR = """
cohorts:
  - className: cohort
    count: 2
    queuesSets:
      - className: cq
        count: 2
        nominalQuota: 20
        borrowingLimit: 100
        workloadsSets:
          - count: 5
            creationIntervalMs: 100
            workloads:
              - {className: small, runtimeMs: 200, priority: 50, request: 1}
              - {className: large, runtimeMs: 1000, priority: 200, request: 20}
"""


def simulate(bin_dir: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [bin_dir / "muster-sim", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_models_match_whatever_their_case_and_what_is_left_out_is_told_last_by_reason(
    bin_dir, tmp_path
):
    clusters, trace = tmp_path / "clusters.yaml", tmp_path / "pods.csv"
    clusters.write_text(CLUSTERS)
    pods = [
        f"fits-{i},1000,1024,1,1000,{'T4' if i % 2 else 't4'},LS,Running,{i},{i + 60},{i}\n"
        for i in range(20)
    ]
    pods += [f"none-{i},1000,1024,1,1000,G2,LS,Running,{i},{i + 60},{i}\n" for i in range(30)]
    trace.write_text(OPENB + "".join(pods))
    ran = simulate(bin_dir, trace, "--cluster", clusters)
    assert ran.returncode == 0, ran.stderr
    said = ran.stderr.strip().splitlines()
    assert said[0].startswith(
        "WARNING: 30 of 50 jobs (60 %) can never run here and were left out"
    ), ran.stderr
    assert len(said) == 2 and said[1].startswith("  30, such as none-0: ") and "G2" in said[1], (
        ran.stderr
    )
    assert ran.stdout.splitlines()[1].split()[:2] == ["(all)", "20"], ran.stdout


def test_a_kueue_generator_runs_on_its_own_hosts_and_queues(bin_dir, tmp_path):
    generator = tmp_path / "g.yaml"
    generator.write_text(GENERATOR)
    ran = simulate(bin_dir, generator)
    assert ran.returncode == 0, ran.stderr
    rows = {
        line.split()[0]: line.split()[1]
        for line in ran.stdout.splitlines()[1:]
        if "/" in line or "(all)" in line
    }
    assert rows["(all)"] == "40" and rows["cohort-1/cq-1"] == "10", ran.stdout
    assert simulate(bin_dir, tmp_path / "trace.csv").returncode == 2, "a trace wants --cluster"


def test_a_gantt_chart_has_every_wait_of_a_job():
    spec = importlib.util.spec_from_file_location("plot", ROOT / "sim" / "plot.py")
    plot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plot)
    job = {"submit_s": 5, "segments": [[10, 100, 0, 4], [300, 500, 1, 4], [500, 600, 0, 4]]}
    assert plot.waits_of(job) == [(5, 10), (100, 300)]


def draw(count: int) -> str:
    """Jobs of both queues on two clusters: shares of GPUs, gangs, elastic ones; more than fits, for a while."""
    chance = random.Random(5)
    rows, at_s = ["submit_s,duration_s,queue,gpus,workers,max_workers,clusters"], 0
    for _ in range(count):
        at_s += chance.randint(0, 150)
        gpus, workers = chance.choice(
            [(0.5, 1), (1, 1), (1, 1), (2, 1), (3, 1), (4, 2), (2, 3), (4, 4)]
        )
        rows.append(
            f"{at_s},{chance.randint(60, 5000)},{chance.choice(['prod', 'scratch'])},{gpus},{workers},{workers + chance.choice([0, 2])},near;far"
        )
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """(trace, its options)"""
    folder = tmp_path_factory.mktemp("busy")
    (folder / "clusters.yaml").write_text(TWO_CLUSTERS)
    (folder / "queues.yaml").write_text(QUEUES)
    (folder / "day.csv").write_text(draw(300))
    return folder / "day.csv", [
        "--cluster",
        folder / "clusters.yaml",
        "--queues",
        folder / "queues.yaml",
    ]


def digest(bin_dir: Path, busy, *more: str) -> str:
    trace, options = busy
    ran = simulate(bin_dir, trace, *options, "-o", "json", *more)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["runs"][0]["digest"]


@pytest.mark.parametrize(
    "name, default, others",
    [
        ("placement", "v", ["best_fit", "fgd"]),
        ("grow-interval", "10m", ["1h"]),
        ("starve-after", "30m", ["0"]),
        ("min-runtime", "5m", ["1h"]),
        ("spill-cost", "60s", ["2h"]),
    ],
)
def test_musterds_settings_change_what_is_decided(bin_dir, busy, name, default, others):
    usual = digest(bin_dir, busy)
    assert usual == digest(bin_dir, busy, f"--{name}", default)
    assert usual not in [digest(bin_dir, busy, f"--{name}", other) for other in others]


def test_what_a_measurement_leaves_out_changes_what_is_decided(bin_dir, busy):
    assert (
        len(
            {
                digest(bin_dir, busy, *without)
                for without in (
                    [],
                    ["--without", "levels"],
                    ["--without", "draining"],
                    ["--without", "levels,draining"],
                )
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("placement", "worst", "best_fit"),
        ("starve-after", "31d", "must be from 0s to 30d; got 31d"),
        ("spill-cost", "60", '--spill-cost: "60" is no duration: the unit is missing'),
    ],
)
def test_musterds_settings_are_checked_as_its_file_is(bin_dir, busy, name, value, says):
    trace, options = busy
    ran = simulate(bin_dir, trace, *options, f"--{name}", value)
    assert ran.returncode == 2 and says in ran.stderr and not ran.stdout, ran.stderr


def test_muster_simulate_runs_a_trace_as_muster_sim_does(bin_dir, busy):
    trace, options = busy

    def muster(*words: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [bin_dir / "muster", "simulate", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=60,
            env={"HOME": "/nonexistent", "MUSTER_BIN_DIR": str(bin_dir)},
        )

    for words, same in (
        ((trace, *options), (trace, *options)),
        (
            (trace, "--compare", "--policies", "muster,drf", *options, "-o", "table"),
            ("compare", trace, "--policies", "muster,drf", *options),
        ),
    ):
        mine, theirs = muster(*words), simulate(bin_dir, *same)
        assert mine.stdout == theirs.stdout and len(mine.stdout.splitlines()) > 2, mine.stderr
    ran = muster(trace)
    assert ran.returncode == 2 and "--cluster FILE is missing" in ran.stderr, ran.stderr


def test_muster_simulate_knows_muster_sims_options(bin_dir):
    def options(*words: str) -> set[str]:
        shown = subprocess.run(
            [bin_dir / words[0], *words[1:], "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        return set(re.findall(r"(?m)(?<=[\s,])--[a-z][a-z-]+", shown))

    own = options("muster-sim")
    assert {"--cluster", "--placement", "--verbose"} < own
    assert own - options("muster", "simulate") == {
        "--random",
        "--seed",
        "--output",
    }  # -o is every command's


def test_every_plot_is_a_picture_and_the_same_again(bin_dir, busy, tmp_path):
    trace, options = busy
    ran = simulate(
        bin_dir, "compare", trace, *options, "--policies", "muster,fifo", "-o", "json", "--jobs"
    )
    assert ran.returncode == 0, ran.stderr
    (tmp_path / "runs.json").write_text(ran.stdout)
    names = {"waits", "allocation-muster", "allocation-fifo", "gantt-muster", "gantt-fifo"}
    for folder, form in (("svg", "svg"), ("again", "svg"), ("png", "png")):
        done = subprocess.run(
            [
                sys.executable,  # deploy/requirements.txt has matplotlib
                ROOT / "sim/plot.py",
                tmp_path / "runs.json",
                "--out",
                tmp_path / folder,
                "--format",
                form,
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert {path.name for path in (tmp_path / folder).iterdir()} == {
            f"{name}.{form}" for name in names
        }
    for name in names:
        picture = (tmp_path / "svg" / f"{name}.svg").read_bytes()
        root = ElementTree.fromstring(picture)
        # Beside the axes and their texts there is what was drawn.
        ids = {element.get("id", "").rsplit("_", 1)[0] for element in root.iter()}
        assert (
            root.tag == "{http://www.w3.org/2000/svg}svg" and {"axes", "legend", "patch"} <= ids
        ), name
        assert picture == (tmp_path / "again" / f"{name}.svg").read_bytes()
        data = (tmp_path / "png" / f"{name}.png").read_bytes()
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        assert (
            data[:8] == b"\x89PNG\r\n\x1a\n"
            and data[12:16] == b"IHDR"
            and data.endswith(b"IEND\xaeB`\x82")
            and width > 300
            and height > 150
        ), name
