"""Hosts on machines of their own: they join by one line, work as a gang, and fall off when they are revoked."""

import re
import shutil
import subprocess

import pytest
from local_system import wait_for
from namespaces import machines, why_not
from network_system import NetworkSystem
from small_system import let_go, marks, submit, submit_waiting, task, wait_ended, wait_started

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")

# Rank 0 waits for the other at the address that both are told; what it is sent has to be the other's rank.
MEETING = """\
name: meeting
queue: research
workers: 2
resources: {gpus: 1, gpu_types: [cpu-slot]}
run: |
  python3 -c '
  import os, socket, time
  rank, at = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
  if rank == 0:
      with socket.create_server(at) as door:
          with door.accept()[0] as other:
              assert other.recv(10) == b"1"
  else:
      for _ in range(200):
          try:
              with socket.create_connection(at) as other:
                  other.sendall(b"1")
              break
          except OSError:
              time.sleep(0.05)
      else:
          raise SystemExit("nobody answers at %s:%d" % at)
  '
"""

ALONE = """\
name: alone
queue: research
resources: {gpus: 1, gpu_types: [cpu-slot]}
run: "true"
"""

COUNTING = """\
name: counting
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
run: |
  n=0
  while [ ! -e {folder}/counting.go ]; do n=$((n + 1)); echo "line $n"; sleep 0.05; done
"""


@pytest.fixture
def net(bare):
    with machines(["m", "h01", "h02"]) as made:
        system = NetworkSystem(bare, made)
        system.start_musterd(["h01", "h02"])
        yield system


def test_hosts_join_by_a_line_each_and_a_gang_meets_over_both(net):
    for host in ("h01", "h02"):
        assert net.join(host) <= 5
        # What the agent does by itself is no trouble: it tells why it connects anew.
        assert "CANCELLED" not in net.system.log_tail(f"agent-lab-{host}", 100)
    job = wait_ended(net.system, submit(net.system, MEETING))
    assert job["state"] == "SUCCEEDED", task(job)
    hosts = {part["host"] for part in task(job)["attempts"][-1]["placements"]}
    assert len(hosts) == 2, hosts


def test_a_line_serves_one_host_once_and_its_key_stays_there(net):
    words = net.line("h01")
    net.start_agent("h01", words)
    net.wait_state("h01", "HOST_UP")
    identity = net.identity("h01")
    assert "PRIVATE KEY" in identity
    # Elsewhere the same line buys nothing.
    again = subprocess.run(
        [str(w) for w in net.agent_command("h02", [*words, "--only"])],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert again.returncode == 1
    assert "Ask for a new one" in again.stderr
    store = b"".join(
        path.read_bytes() for path in (net.system.folder / "store").rglob("*") if path.is_file()
    )
    secret = words[words.index("--token") + 1].split("_", 2)[2]
    assert secret.encode() not in store
    body = "".join(identity.split("-----")[2].split())
    assert body.encode() not in store
    # The same line where it joined goes on as what it is.
    net.stop_agent("h01")
    net.start_agent("h01", words)
    net.wait_state("h01", "HOST_UP")
    assert net.identity("h01") == identity


def test_a_revoked_host_falls_off_within_five_seconds_and_the_other_does_not(net):
    for host in ("h01", "h02"):
        net.join(host)
    net.system.run(["host", "revoke", "lab/h02"])
    assert net.wait_state("h02", "HOST_SILENT", 5) <= 5
    assert net.state("h01") == "HOST_UP"
    wait_for(
        "the agent to say why", lambda: "revoked" in net.system.log_tail("agent-lab-h02", 50), 20
    )
    said = net.system.log_tail("agent-lab-h02", 50)
    assert "muster host token new lab/h02" in said, said
    assert "CANCELLED" not in said, said
    # It comes back by a new line alone, which leaves the old identity beside the new one.
    net.stop_agent("h02")
    before = net.identity("h02")
    net.join("h02")
    assert net.identity("h02") != before
    assert (net.system.folder / "agents" / "lab-h02" / "identity.old").read_text() == before


def test_a_range_of_hosts_gets_a_line_each_in_order(net):
    done = net.system.run(["host", "token", "new", "lab/h[01-02]"])
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["muster-agent", "join"]] * 2
    assert len({line.split()[line.split().index("--token") + 1] for line in lines}) == 2
    said = re.findall(r"Run on (\S+) this line", " ".join(done.stderr.split()))
    assert said == ["lab/h01", "lab/h02"]


def test_a_later_start_runs_jobs_as_the_join_line_said(net):
    net.join("h01")
    net.stop_agent("h01")
    net.start_agent("h01", [])
    job = wait_ended(net.system, submit(net.system, ALONE))
    assert job["state"] == "SUCCEEDED", task(job)
    # Only a word of the administrator's changes as whom they run.
    net.stop_agent("h01")
    refused = subprocess.run(
        [str(w) for w in net.agent_command("h01", [], "--single-user=false")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "private to each job" in refused.stderr, refused.stderr


@pytest.mark.parametrize("wrong", ["door", "token", "nobody"])
def test_a_join_that_is_refused_ends_with_1_and_names_the_remedy(net, wrong):
    words = net.line("h01")
    address = net.machines.addresses["m"]
    at = words.index(f"{address}:7421")
    if wrong == "door":
        words[at], says = f"{address}:7420", "is not the join door"
    elif wrong == "token":
        words[words.index("--token") + 1], says = "mst_none_none", "Ask for a new one"
    else:
        words[at], says = f"{address}:7499", "Connection refused"
    joined = subprocess.run(
        [str(w) for w in net.agent_command("h01", [*words, "--only"])],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert joined.returncode == 1, joined.stderr
    assert says in joined.stderr
    # What gRPC says of the connection is an event as all others are.
    log = net.system.log_tail("musterd", 50).splitlines()
    assert all(line.startswith("20") for line in log), log
    if wrong == "door":
        assert any(" gRPC what=" in line for line in log), log


def test_who_comes_by_an_authority_that_was_dropped_is_told_so(net):
    net.join("h01")
    net.stop_agent("h01")
    user = net.system.json("access", "check", "/")["user"]
    net.log_in(user, "h02")
    for step in ("prepare", "sign", "drop"):
        done = net.system.run(["ca", "rotate", step, *(["--force"] if step != "prepare" else [])])
    assert "before the new one signed take another --ca" in done.stdout, done
    net.start_agent("h01", [])
    said = "muster host token new lab/h01"
    wait_for("the agent to say why", lambda: said in net.system.log_tail("agent-lab-h01", 50), 20)
    net.stop_agent("h01")
    net.join("h01")
    pinged = net.muster(user, "h02", "ping")
    assert "log in anew: muster login" in pinged.stderr, pinged.stderr
    assert "muster up" not in pinged.stderr, pinged.stderr


def test_a_rotation_stops_no_job_and_no_host_has_to_join_again(net):
    for host in ("h01", "h02"):
        net.join(host)
    before = net.authorities()
    number = submit_waiting(net.system, "long", workers="2")
    wait_started(net.system, "long", 2)
    net.rotate()
    after = net.authorities()
    assert len(after) == 1
    assert after[0]["fingerprint"] != before[0]["fingerprint"]
    for host in ("h01", "h02"):
        net.wait_state(host, "HOST_UP")
    let_go(net.system, "long")
    job = wait_ended(net.system, number)
    assert job["state"] == "SUCCEEDED"
    assert {attempt for _, attempt, _ in marks(net.system, "long")} == {1}


def test_followers_outlive_their_certificates_and_a_rotation(bare):
    """They renew the login themselves: no other command uses it meanwhile."""
    with machines(["m", "h01"]) as made:
        net = NetworkSystem(bare, made)
        net.start_musterd(["h01"], user_life="10s")
        net.join("h01")
        number = submit(bare, COUNTING.format(folder=bare.folder))
        wait_for("the job to run", lambda: bare.job(number)["state"] == "RUNNING", 20)
        user = bare.json("access", "check", "/")["user"]
        net.log_in(user, "h01")
        identity = next((bare.folder / "homes").rglob("*.identity"))
        before = identity.read_text()
        followers = {
            "logs": net.begin(user, "h01", "logs", "logs", "-f", number),
            "wait": net.begin(user, "h01", "wait", "wait", number),
        }

        def lines() -> list[str]:
            return (bare.folder / "logs.out").read_text().splitlines()

        try:
            wait_for("its output", lines, 20)
            net.rotate()
            assert identity.read_text() != before
            had = len(lines())
            wait_for("more of its output", lambda: len(lines()) > had, 30)
            let_go(bare, "counting")
            for name, follower in followers.items():
                assert follower.wait(60) == 0, (bare.folder / f"{name}.err").read_text()
        finally:
            for follower in followers.values():
                follower.kill()
                follower.wait(10)
        said = lines()
        assert said == [f"line {i}" for i in range(1, len(said) + 1)], said[-20:]


def test_a_restart_of_the_scheduler_needs_its_master_key(net):
    net.join("h01")
    net.system.processes["musterd"].terminate()
    net.system.processes["musterd"].wait(20)
    key = net.system.folder / "etc" / "master.key"
    kept = key.read_text()
    key.unlink()
    # fmt: off
    refused = subprocess.run(
        [net.system.bin_dir / "musterd", "--config", net.system.folder / "etc" / "musterd.yaml"],
        capture_output=True, text=True, timeout=30,
    )
    # fmt: on
    assert refused.returncode == 2
    assert "master_key" in refused.stderr
    key.write_text(kept)
    key.chmod(0o400)
    net.begin_musterd()
    net.wait_state("h01", "HOST_UP")


def seen_by(net, host: str):
    """The file in which its agent keeps what it has seen of the store."""
    return net.system.folder / "agents" / f"lab-{host}" / "seen"


def epoch_kept(net, host: str) -> int:
    path = seen_by(net, host)
    told = re.search(r" epoch=(\d+)", path.read_text() if path.exists() else "")
    return int(told[1]) if told else 0


def test_a_host_that_claims_a_later_store_without_its_mac_is_refused_alone(net):
    for host in ("h01", "h02"):
        net.join(host)
    # It is up a moment before its agent has heard so.
    wait_for("h02 to keep the epoch", lambda: epoch_kept(net, "h02"), 10)
    net.stop_agent("h02")
    seen = seen_by(net, "h02")
    kept = seen.read_text()
    assert re.search(r" mac=[0-9a-f]{32}\b", kept), kept
    seen.write_text(re.sub(r" epoch=\d+", " epoch=1800000000000", kept))
    net.start_agent("h02", [])
    wait_for(
        "its agent to be told so",
        lambda: "it has no MAC of it" in net.system.log_tail("agent-lab-h02", 50),
        20,
    )
    denied = net.system.json("audit", "list", "--denied")["records"]
    assert [
        (record["user"], record["method"])
        for record in denied
        if "epoch 1800000000000" in record.get("detail", "")
    ] == [("host lab/h02", "AgentService/Connect")]
    wait_for("h02 to fall silent", lambda: net.state("h02") != "HOST_UP", 20)
    assert net.state("h01") == "HOST_UP"
    job = wait_ended(net.system, submit(net.system, ALONE))
    assert job["state"] == "SUCCEEDED", task(job)
    # It comes back with what it was told.
    net.stop_agent("h02")
    seen.write_text(kept)
    net.start_agent("h02", [])
    net.wait_state("h02", "HOST_UP")


def test_a_host_that_shows_the_mac_of_a_later_store_is_believed(net):
    def stop_musterd() -> None:
        net.system.processes["musterd"].kill()
        net.system.processes["musterd"].wait(20)

    def serve_until_seen() -> None:
        before = epoch_kept(net, "h01")
        net.begin_musterd()
        wait_for("h01 to keep the epoch", lambda: epoch_kept(net, "h01") > before, 20)
        stop_musterd()

    net.join("h01")
    wait_for("h01 to keep the epoch", lambda: epoch_kept(net, "h01"), 10)
    stop_musterd()
    store, older = net.system.folder / "store", net.system.folder / "older"
    older.mkdir()
    for name in ("muster.db", "muster.db-wal"):
        if (store / name).exists():
            shutil.copy(store / name, older)
    for _ in range(2):  # one epoch more than the older store's next
        serve_until_seen()
    for name in ("muster.db-wal", "muster.db-shm"):
        (store / name).unlink(missing_ok=True)
    for path in older.iterdir():
        shutil.copy(path, store)  # into the file that is there: another one is refused at once
    net.begin_musterd()
    said = wait_for(
        "the older store to be read-only",
        lambda: "backup" in (said := net.system.run(["ping"], check=False).stdout) and said,
        30,
    )
    assert "--adopt-restored" in said


def test_the_master_key_may_be_a_credential_of_systemds(net, monkeypatch):
    def refused():
        # fmt: off
        return subprocess.run(
            [net.system.bin_dir / "musterd", "--config", net.system.folder / "etc" / "musterd.yaml"],
            capture_output=True, text=True, timeout=30,
        )
        # fmt: on

    net.system.processes["musterd"].terminate()
    net.system.processes["musterd"].wait(20)
    config = net.system.folder / "etc" / "musterd.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "master_key" not in line))
    assert "systemd's credential musterd.master-key" in refused().stderr
    credential = net.system.folder / "credentials" / "musterd.master-key"
    credential.parent.mkdir()
    (net.system.folder / "etc" / "master.key").rename(credential)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credential.parent))
    net.begin_musterd()
    net.system.processes["musterd"].terminate()
    net.system.processes["musterd"].wait(20)
    # Without it nothing is made in systemd's place: neither with a store that wants it, nor at a first start.
    credential.unlink()
    assert "can't be read without it" in refused().stderr
    shutil.rmtree(net.system.folder / "store")
    assert "systemd's credential musterd.master-key" in refused().stderr
    assert not credential.exists()


def test_certificates_of_seconds_are_renewed_while_a_job_runs(bare):
    with machines(["m", "h01"]) as made:
        net = NetworkSystem(bare, made)
        net.start_musterd(["h01"], host_life="4s")
        net.join("h01")
        first = net.identity("h01")
        number = submit_waiting(net.system, "long")
        wait_started(net.system, "long", 1)
        seen = {first}
        wait_for("three renewals", lambda: seen.add(net.identity("h01")) or len(seen) > 3, 30)
        # It sleeps through its certificate's end: it renews by its key.
        made.cut("h01")
        net.wait_state("h01", "HOST_SILENT", 40)
        made.cut("h01", False)
        net.wait_state("h01", "HOST_UP", 40)
        let_go(net.system, "long")
        assert wait_ended(net.system, number)["state"] == "SUCCEEDED"
        assert {attempt for _, attempt, _ in marks(net.system, "long")} == {1}


def test_a_user_logs_in_from_another_machine_and_is_out_when_revoked(net):
    net.join("h01")
    name = net.system.json("access", "check", "/")["user"]
    words = net.system.run(["user", "invite", name]).stdout.split()
    home = net.system.folder / "home"
    home.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)}

    def muster(*arguments):
        command = net.machines.on("h02", [net.system.bin_dir / "muster", *arguments])
        # fmt: off
        return subprocess.run(
            [str(w) for w in command], env=environment, capture_output=True, text=True, timeout=60
        )
        # fmt: on

    wrong = muster(*[word.replace(":7421", ":7420") for word in words[1:]])
    assert "is not the join door" in wrong.stderr, wrong.stderr
    assert "muster up" not in wrong.stderr, wrong.stderr
    logged_in = muster(*words[1:])
    assert logged_in.returncode == 0, logged_in.stderr
    assert muster("ping").returncode == 0
    file = net.system.folder / "hello.yaml"
    file.write_text(
        "name: hello\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: echo hello\n"
    )
    submitted = muster("submit", file, "-y", "--detach")
    assert submitted.returncode == 0, submitted.stderr
    # A certificate gives no role: the machine's administrator isn't one by name.
    denied = muster("host", "revoke", "lab/h01")
    assert denied.returncode != 0
    net.system.run(["user", "revoke", name])
    wait_for("the user to be out", lambda: muster("ping").returncode != 0, 5)
    assert muster(*words[1:], "--as", "again").returncode != 0
