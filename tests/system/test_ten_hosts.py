"""Some hosts of those of `bench/run.sh ten-hosts`, in two clusters, with three users in two teams."""

import pytest
from local_system import LocalSystem, kill_all, system_folder
from namespaces import machines, why_not
from ten_hosts import TEAMS, TenHosts

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")
CLUSTERS = {"east": ["h01", "h02", "h03"], "west": ["h04"]}


@pytest.fixture(scope="module")
def net(bin_dir):
    # Not below /tmp: agents of several users want their state elsewhere.
    names = ["m", "m2", *CLUSTERS["east"], *CLUSTERS["west"]]
    with system_folder("/srv") as folder, machines(names) as made:
        net = TenHosts(LocalSystem(folder, bin_dir), made, CLUSTERS)
        net.start()
        for host in net.hosts:
            assert net.join(host) <= 5
        for user, team in TEAMS.items():
            net.log_in(user, "h01", team)
        yield net
        kill_all(folder)


def test_a_gang_meets_over_hosts_that_are_machines_of_their_own(net):
    net.gang_meets("ann", 3)


def test_teams_have_queues_and_jobs_of_their_own(net):
    net.teams_are_apart()


def test_a_gang_goes_on_without_a_host_that_died(net):
    net.dying_host(workers=2)


def test_musterd_moves_to_another_address_and_nobody_has_to_be_told(net):
    net.runs_on(net.moves)
