"""Hostile peers, a little of each kind; all of it: bench/run.sh hostile-peers."""

import pytest
from hostile_peers import HOSTS, Siege
from local_system import LocalSystem, kill_all, system_folder
from namespaces import machines, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")


@pytest.fixture(scope="module")
def siege(bin_dir):
    with system_folder("/srv") as folder, machines(["m", *HOSTS, "x"]) as made:
        siege = Siege(LocalSystem(folder, bin_dir), made)
        siege.begin()
        yield siege
        kill_all(folder)


@pytest.mark.parametrize("scene", ["rapid-reset", "continuation", "rubbish"])
def test_without_a_certificate_no_byte_of_http2_comes_back(siege, scene):
    found = siege.attack(scene, "--seconds", 1, "--connections", 2)
    assert found["received"] == 0
    assert siege.alive()


def test_the_join_door_does_speak_http2_so_that_its_absence_means_something(siege):
    options = ["--seconds", 1, "--connections", 1, "--sources", siege.sources[0]]
    assert siege.attack("windows", *options, join=True)["received"] > 0


@pytest.mark.parametrize("scene", ["rapid-reset", "open-streams", "ping"])
def test_a_flood_with_a_certificate_is_ended_and_others_are_served(siege, scene):
    # Another address each time: one that was cut off waits.
    options = ["--connections", 2, "--sources", siege.sources[1 + len(scene)]]
    found = siege.measured(scene, 2, *options, who="host")
    assert found["ended"] >= 1, found
    assert found["alive"] and found["up"]
    assert found["calls"]["failed"] == 0
    assert found["grown_mib"] <= 200  # 1,800 without a limit; the row has the bar


def test_every_mutated_hello_has_an_end(siege):
    found = siege.attack("hellos", "--count", 300, "--seconds", 10, "--seed", 7)
    assert found["said"] == 300
    assert found["unended"] == 0 and found["strange"] == 0
    assert siege.alive()


def test_connections_that_say_nothing_keep_nobody_out(siege):
    holding = siege.hostile(
        "hold-silent", "--count", 1500, "--sources", ",".join(siege.sources), "--seconds", 3
    )
    assert siege.calls(2)["failed"] == 0
    siege.result(holding)
