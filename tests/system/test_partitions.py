"""A network that fails between an agent and the scheduler. All its ways are a benchmark's (`bench/run.sh partitions`)."""

from contextlib import closing

import pytest
from cuts import Fleet, partition
from namespaces import why_not
from teams_over_tls import FleetOverTls, teams_over_tls


@pytest.fixture
def fleet(bare):
    fleet = Fleet(bare, ["h01", "h02"])
    yield fleet
    fleet.close()


def test_what_runs_on_a_host_that_is_cut_off_for_less_than_the_lease_goes_on(fleet):
    assert partition(fleet, "both ways", "short", "c") == []


def test_a_host_that_hears_nothing_for_longer_keeps_what_waits_and_loses_what_may_be_replaced(
    fleet,
):
    assert partition(fleet, "to the host", "long", "c", rules=("replace", "wait")) == []


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")
def test_jobs_of_several_users_go_on_on_a_host_that_is_cut_off_over_tls(bin_dir):
    with (
        teams_over_tls(bin_dir, ["h01", "h02"], "127.0.0.1") as system,
        closing(FleetOverTls(system, ["h01", "h02"])) as fleet,
    ):
        assert partition(fleet, "both ways", "short", "c") == []
        assert system.lost() == []
