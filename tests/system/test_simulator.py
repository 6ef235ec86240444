"""muster-sim as people run it: what it says of jobs that it leaves out, Kueue's generators, the plots' waits."""

import importlib.util
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CLUSTERS = """
skus: {t4s: {flavour: T4, gpus: 2, cpus: 8, memory: 64GiB, declared: true}}
storages: {s: {path: /s, clusters: [lab]}}
clusters:
  - {name: lab, sku: t4s, job_storage: s, topology: {b: {r: ["h[1-4]"]}}}
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
    return subprocess.run([bin_dir / "muster-sim", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_models_match_whatever_their_case_and_what_is_left_out_is_told_last_by_reason(bin_dir, tmp_path):
    clusters, trace = tmp_path / "clusters.yaml", tmp_path / "pods.csv"
    clusters.write_text(CLUSTERS)
    pods = [f"fits-{i},1000,1024,1,1000,{'T4' if i % 2 else 't4'},LS,Running,{i},{i + 60},{i}\n" for i in range(20)]
    pods += [f"none-{i},1000,1024,1,1000,G2,LS,Running,{i},{i + 60},{i}\n" for i in range(30)]
    trace.write_text(OPENB + "".join(pods))
    ran = simulate(bin_dir, trace, "--cluster", clusters)
    assert ran.returncode == 0, ran.stderr
    said = ran.stderr.strip().splitlines()
    assert said[0].startswith("WARNING: 30 of 50 jobs (60 %) can never run here and were left out"), ran.stderr
    assert len(said) == 2 and said[1].startswith("  30, such as none-0: ") and "G2" in said[1], ran.stderr
    assert ran.stdout.splitlines()[1].split()[:2] == ["(all)", "20"], ran.stdout


def test_a_kueue_generator_runs_on_its_own_hosts_and_queues(bin_dir, tmp_path):
    generator = tmp_path / "g.yaml"
    generator.write_text(GENERATOR)
    ran = simulate(bin_dir, generator)
    assert ran.returncode == 0, ran.stderr
    rows = {line.split()[0]: line.split()[1] for line in ran.stdout.splitlines()[1:] if "/" in line or "(all)" in line}
    assert rows["(all)"] == "40" and rows["cohort-1/cq-1"] == "10", ran.stdout
    assert simulate(bin_dir, tmp_path / "trace.csv").returncode == 2, "a trace wants --cluster"


def test_a_gantt_chart_has_every_wait_of_a_job():
    spec = importlib.util.spec_from_file_location("plot", ROOT / "sim" / "plot.py")
    plot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plot)
    job = {"submit_s": 5, "segments": [[10, 100, 0, 4], [300, 500, 1, 4], [500, 600, 0, 4]]}
    assert plot.waits_of(job) == [(5, 10), (100, 300)]
