"""muster-sim as its users meet it: what can't have been meant is told, and fails."""

import subprocess

import pytest

CLUSTERS = """\
skus: {slots: {flavour: cpu-slot, gpus: 2, cpus: 2, memory: 4GiB, disk: 10GiB, declared: true}}
storages: {shared: {path: /srv, clusters: [lab]}}
clusters: [{name: lab, sku: slots, job_storage: shared, topology: {b: {r: [h1, h2]}}}]
"""


@pytest.fixture
def simulate(folder, bin_dir):
    (folder / "clusters.yaml").write_text(CLUSTERS)

    def run(rows: str, *arguments: str) -> subprocess.CompletedProcess:
        (folder / "trace.csv").write_text("submit_s,duration_s,queue,gpus,gpu_type\n" + rows)
        return subprocess.run(
            [
                bin_dir / "muster-sim",
                folder / "trace.csv",
                "--cluster",
                folder / "clusters.yaml",
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_a_traces_queues_without_a_queues_file_are_told_before_anything_runs(simulate):
    done = simulate("0,10,vision,1,\n1,10,speech,1,\n")
    assert done.returncode == 2 and done.stdout == ""
    assert "speech, vision" in done.stderr and "--queues FILE" in done.stderr, done.stderr


def test_a_trace_of_which_nothing_can_run_fails(simulate):
    done = simulate("0,10,default,3,\n1,10,default,1,h100-80g\n")
    assert done.returncode == 1 and "2 of 2 jobs (100 %) can never run here" in done.stderr, (
        done.stderr
    )


def test_what_can_run_runs_beside_what_is_refused(simulate):
    done = simulate("0,10,default,3,\n1,10,default,1,\n")
    assert (
        done.returncode == 0
        and "1 of 2 jobs (50 %) can never run here" in done.stderr
        and "default" in done.stdout
    ), done.stderr
