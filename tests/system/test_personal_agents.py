"""A user's own machine: its agent joins without root, for that user's jobs alone."""

import shutil
import subprocess

import pytest
from local_system import wait_for
from namespaces import why_not
from small_system import configure, task
from teams_over_tls import teams_over_tls
from ten_hosts import UIDS

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")

QUEUES = 'queues: [{name: research, submit: ["*"]}]\n'
ANNS = "clusters: [anns]\n"
WHO = "id -u; id -un; grep CapEff /proc/self/status"


def flat(said: str) -> str:
    return " ".join(said.split())


class Workstation:
    """Machine ws, where ann is no more than ann. Cluster anns is hers; lab has one slot for all."""

    def __init__(self, system):
        self.system, self.net = system, system.net
        configure(system, QUEUES, hosts=("h01",), slots=1)
        self.place = system.folder / "anns"
        self.place.mkdir(mode=0o700)
        self.programs = system.folder / "bin"  # the checkout may be one that ann can't read
        self.programs.mkdir()
        for name in ("muster-agent", "muster-shim"):
            shutil.copy2(system.bin_dir / name, self.programs)
        for path in (self.place, self.place / "home"):
            path.mkdir(exist_ok=True)
            shutil.chown(path, UIDS["ann"], UIDS["ann"])
        self.change(
            "storages: {", f"storages: {{home: {{path: {self.place}/home, clusters: [anns]}}, "
        )
        clusters = system.folder / "etc" / "clusters.yaml"
        clusters.write_text(
            clusters.read_text()
            + "  - {name: anns, sku: slots, job_storage: home, open: true, only_user: ann}\n"
        )
        system.start_musterd()
        system.start_agent("lab", "h01")

    def change(self, was: str, now: str) -> None:
        """Of clusters.yaml."""
        path = self.system.folder / "etc" / "clusters.yaml"
        assert was in path.read_text()
        path.write_text(path.read_text().replace(was, now))

    def line(self, host: str) -> list[str]:
        """The words that `muster host token new` prints, with ann's directory in them."""
        words = self.system.run(["host", "token", "new", host]).stdout.split()
        assert words[:2] == ["muster-agent", "join"], words
        at = words.index("--state-dir") + 1
        return [*words[1:at], self.place / "state", *words[at + 1 :]]

    def command(self, words: list) -> list[str]:
        """muster-agent on ws, as ann."""
        ann = str(UIDS["ann"])
        become = ["setpriv", "--reuid", ann, "--regid", ann, "--clear-groups"]
        declared = ["--inventory", self.system.folder / "etc" / "host.yaml"]
        command = [*become, self.programs / "muster-agent", *words, *declared]
        return [str(word) for word in self.net.with_accounts("ws", command)]

    def refused(self, words: list) -> str:
        done = subprocess.run(self.command(words), capture_output=True, text=True, timeout=30)
        assert done.returncode != 0
        return flat(done.stderr)

    def join(self) -> None:
        words = self.line("anns/ws")
        assert words[-1] == "--as-me", words
        self.system.spawn("agent-anns-ws", self.command(words))
        self.wait_up()

    def wait_up(self) -> None:
        wait_for(
            f"anns/ws to be up: {self.system.log_tail('agent-anns-ws')}",
            lambda: any(
                host["name"] == "anns/ws" and host["state"] == "HOST_UP"
                for host in self.system.hosts()
            ),
            20,
        )

    def submit_as(self, user: str, name: str, run: str, more: str = "") -> int:
        queue = "research/" + {"cid": "vision"}.get(user, "nlp")
        return self.net.submit_as(user, name, run, queue=queue, more=more, at="m")


@pytest.fixture
def station(bin_dir):
    with teams_over_tls(bin_dir, ["h01", "ws"]) as system:
        yield Workstation(system)


def test_a_user_without_root_joins_their_machine_and_their_jobs_run_there(station):
    station.join()
    told = station.system.run(["host", "show", "anns/ws"]).stdout
    assert "Takes jobs of ann alone" in told, told
    number = station.submit_as("ann", "hers", WHO, ANNS)
    job = station.net.ended(number)
    log = station.net.muster("ann", "m", "logs", number).stdout
    assert job["state"] == "SUCCEEDED", log
    assert station.net.placed(job) == {"ws"}
    said = [line.split()[-1] for line in log.splitlines()]
    assert said == [str(UIDS["ann"]), "ann", "0" * 16], log
    # A later start needs no word of it again.
    agent = station.system.processes["agent-anns-ws"]
    agent.terminate()
    agent.wait(10)
    station.system.spawn("agent-anns-ws", station.command(["--state-dir", station.place / "state"]))
    station.wait_up()
    again = station.submit_as("ann", "again", "true", ANNS)
    assert station.net.ended(again)["state"] == "SUCCEEDED"


def test_nobody_elses_job_is_placed_there_and_all_are_told_why(station):
    station.join()
    net, system = station.net, station.system
    first = station.submit_as("cid", "fills-the-lab", "sleep 600")
    wait_for("the lab to be full", lambda: system.job(first)["state"] == "RUNNING", 20)
    waits = station.submit_as("bob", "waits", "sleep 600")
    hers = station.submit_as("ann", "hers", "sleep 600")
    wait_for("ann's, which came later, to run", lambda: system.job(hers)["state"] == "RUNNING", 30)
    assert net.placed(system.job(hers)) == {"ws"}
    net.muster("ann", "m", "cancel", hers)
    net.ended(hers)
    # There is room now, but not for bob's: it waits for the lab.
    told = flat(net.muster("bob", "m", "explain", waits).stdout)
    assert "waits for 1 more cpu-slot in lab to become free" in told, told
    job = system.job(waits)
    assert job["state"] == "WAITING" and not task(job)["attempts"], job
    preview = net.muster("bob", "m", "submit", system.folder / "waits.yaml", "--preview-only")
    assert "is for jobs of ann alone" in flat(preview.stdout), preview
    # Nor does it run there where he names it.
    file = system.folder / "named.yaml"
    file.write_text((system.folder / "waits.yaml").read_text() + ANNS)
    named = net.muster("bob", "m", "submit", file, "-y", "--detach")
    assert named.returncode != 0
    assert "cluster anns is for jobs of ann alone" in flat(named.stderr), named.stderr
    # It goes where everybody's go.
    net.muster("cid", "m", "cancel", first)
    wait_for("bob's to run", lambda: system.job(waits)["state"] == "RUNNING", 30)
    assert net.placed(system.job(waits)) == {"h01"}


def test_without_root_no_machine_serves_others(station):
    everybodys = station.line("lab/h01")
    assert "only root can run jobs as their owners" in station.refused(everybodys)
    assert "lab/h01 is a host for everybody's jobs" in station.refused([*everybodys, "--as-me"])


def test_a_cluster_that_becomes_another_ones_takes_the_machine_no_more(station):
    station.join()
    first = station.submit_as("ann", "first", "sleep 600", ANNS)
    wait_for("ann's to run", lambda: station.system.job(first)["state"] == "RUNNING", 20)
    waits = station.submit_as("ann", "waits", "true", ANNS)
    station.change("only_user: ann", "only_user: bob")
    station.system.processes["musterd"].terminate()
    station.system.processes["musterd"].wait(20)
    station.system.start_musterd()
    why = "the certificate of this host is for jobs of ann alone, and cluster anns is for those of bob"
    wait_for(
        "its agent to be told so",
        lambda: why in station.system.log_tail("agent-anns-ws", 50),
        30,
    )
    told = flat(station.net.muster("ann", "m", "explain", waits).stdout)
    assert "anns is for jobs of bob alone" in told, told
    bobs = station.submit_as("bob", "bobs", "true", ANNS)
    for number in (waits, bobs):
        assert station.system.job(number)["state"] == "WAITING"
