"""A hostile job gains nothing of the host's, the agent's or another user's: a few of the attacks; all are `bench/run.sh hostile-jobs`."""

import os
from pathlib import Path

import pytest
from hostile_jobs import attack_all, attack_names, hostile_host

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")

ONE_OF_EACH_KIND = [
    "setuid_file",
    "groups_of_the_agent",
    "unmount_private_tmp",
    "no_limit_of_processes",
    "leaves_its_control_group",
    "keys_of_the_agent",
    "inherited_descriptors",
    "signals_by_the_hosts_numbers",
    "secrets_in_environments",
    "progress_for_anns_job",
    "daemon_outside",
    "reads_logs_of_anns_job",
    "speaks_as_an_agent",
    "records_of_the_agent",
    "files_of_ann",
    "export_to_roots",
    "export_of_roots_files",
    "link_instead_of_the_job",
    "workdir_by_a_link",
    "name_of_a_shim",
    "agent_and_shim_killed",
]


# What holds a job to its memory is a control group (docs/security.md).
MEMORY = ["no_limit_of_memory", "no_limit_of_memory_in_tmp"]


def limits_memory() -> bool:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split()[:3]
        if kind == "cgroup" and "memory" in options.split(","):
            return True
        controllers = Path(mount.split()[4]) / "cgroup.controllers"
        if kind == "cgroup2" and "memory" in controllers.read_text().split():
            return True
    return False


def test_a_job_gains_nothing_by_an_attack(bin_dir):
    with hostile_host(bin_dir) as host:
        assert attack_all(host, ONE_OF_EACH_KIND) == {}


@pytest.mark.skipif(not limits_memory(), reason="no control groups limit memory here")
def test_a_job_gets_no_more_memory_than_it_asked_for(bin_dir):
    with hostile_host(bin_dir) as host:
        assert attack_all(host, MEMORY) == {}


def test_the_attacks_succeed_where_everything_runs_as_root(bin_dir):
    """Else their refusals would say nothing."""
    can = {"files_of_ann", "groups_of_the_agent", "records_of_the_agent", "export_to_roots"}
    with hostile_host(bin_dir, control=True) as host:
        assert set(attack_all(host, sorted(can))) >= can


def test_every_attack_of_the_short_form_is_there():
    assert {*ONE_OF_EACH_KIND, *MEMORY} <= {*attack_names(), "agent_and_shim_killed"}
