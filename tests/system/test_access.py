"""Several users on one machine, each with a uid of their own: who may do what, and what the audit says of it."""

import json
import os
import subprocess

import pytest
from local_system import Failed, wait_for
from small_system import configure

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")

# Uids without an account: musterd.yaml says who they are.
UIDS = {"ann": 20001, "bob": 20002, "lea": 20003, "oli": 20004, "vic": 20005}
STRANGER = 20099
USERS = "users: {{{}}}\n".format(
    ", ".join(
        f"{name}: {{uid: {uid}, groups: [{'nlp' if name == 'ann' else 'others'}]}}"
        for name, uid in UIDS.items()
    )
)
QUEUES = """\
queues:
  - name: research
    admin: [lea]
    queues:
      - {name: nlp, submit: [nlp]}
      - {name: vision}
  - {name: research2, submit: [bob]}
"""
JOB = """\
name: hello
queue: {queue}
env: {{TOKEN: s3cret}}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
run: "true"
"""


class Shared:
    def __init__(self, system):
        self.system = system

    def run(self, user, arguments, stdin=None):
        """`muster` as this user (a name or a uid)."""
        uid = UIDS.get(user, user)
        return subprocess.run(
            [self.system.bin_dir / "muster", *map(str, arguments)],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=60,
            user=uid,
            group=uid,
            extra_groups=[],
            env=self.system.environment() | {"HOME": "/", "NO_COLOR": "1"},
            cwd="/",
        )

    def ok(self, user, *arguments, stdin=None):
        done = self.run(user, arguments, stdin)
        assert done.returncode == 0, (user, arguments, done.stderr)
        return done.stdout

    def refused(self, user, *arguments, stdin=None):
        done = self.run(user, arguments, stdin)
        assert done.returncode != 0, (user, arguments, done.stdout)
        return done.stderr

    def submit(self, user, queue):
        out = self.ok(
            user, "submit", "--wait-for-capacity", "-o", "json", "-", stdin=JOB.format(queue=queue)
        )
        return json.loads(out)["number"]


@pytest.fixture
def shared(bare):
    configure(bare, QUEUES)
    config = bare.folder / "etc" / "musterd.yaml"
    config.write_text(config.read_text().replace("single_user: true\n", USERS))
    for path in (bare.folder, bare.folder / "etc"):
        path.chmod(0o755)
    bare.start_musterd()
    return Shared(bare)


def test_each_user_sees_and_does_what_their_role_says(shared):
    shared.ok(0, "access", "grant", "oli", "operator", "research")
    shared.ok("lea", "access", "grant", "vic", "viewer", "research/nlp")
    number = shared.submit("ann", "research/nlp")
    # The owner, and who operates or administers the queue or one above it.
    for user in ("ann", "oli", "lea", 0):
        assert "s3cret" in shared.ok(user, "show", number, "-o", "json"), user
    shown = shared.ok("vic", "show", number, "-o", "json")
    assert "TOKEN" in shown and "s3cret" not in shown
    assert "takes operator at queue research/nlp" in shared.refused("vic", "cancel", number)
    assert "takes operator" in shared.refused("vic", "logs", number)
    # Who sees nothing of it is told what they would be told of one that isn't there.
    assert shared.refused("bob", "show", number) == shared.refused("bob", "show", 99).replace(
        "99", str(number)
    )
    for user, numbers in (("ann", [number]), ("vic", [number]), ("bob", [])):
        jobs = json.loads(shared.ok(user, "jobs", "-a", "-o", "json"))
        assert [job["number"] for job in jobs.get("jobs", [])] == numbers, user
    shared.ok("oli", "cancel", number)


def test_a_queue_is_no_beginning_of_anothers_name(shared):
    shared.ok(0, "access", "grant", "oli", "operator", "research")
    number = shared.submit("bob", "research2")
    assert "there is no job" in shared.refused("oli", "show", number)
    assert 'no queue "research2"' in shared.refused(
        "oli", "submit", "-", stdin=JOB.format(queue="research2")
    )
    paths = [
        q["path"] for q in json.loads(shared.ok("oli", "queue", "list", "-o", "json"))["queues"]
    ]
    assert paths == ["research", "research/nlp", "research/vision"]


def test_an_admin_changes_and_grants_below_and_no_further(shared):
    tree = shared.ok("lea", "queue", "export")
    assert "research2" not in tree
    shared.ok(
        "lea",
        "queue",
        "apply",
        "-",
        stdin=tree.replace("- name: vision", "- name: vision\n        held: true"),
    )
    everything = shared.ok(0, "queue", "export")
    assert "held: true" in everything and "research2" in everything, "what she can't see stayed"
    assert "admin at the root" in shared.refused("lea", "access", "grant", "bob", "viewer", "/")
    assert "research2" in shared.refused("lea", "access", "grant", "bob", "viewer", "research2")
    assert "takes operator at the root" in shared.refused("lea", "cluster", "drain", "lab", "--yes")
    shared.ok(0, "access", "grant", "lea", "admin", "/")
    assert "last admin" in shared.refused(0, "access", "revoke", "lea", "/")


def test_who_is_nobody_here_is_told_so_and_an_agent_that_runs_all_as_one_is_refused(shared):
    for user in (STRANGER, 65534):
        assert "nobody whom this musterd knows" in shared.refused(user, "jobs")
    system = shared.system
    system.start_agent("lab", "h01")
    wait_for(
        "the agent's refusal",
        lambda: "serves several users" in system.log_tail("agent-lab-h01"),
        20,
    )


def test_the_audit_has_changes_and_denials_and_shows_when_it_was_changed(shared):
    number = shared.submit("ann", "research/nlp")
    shared.refused("bob", "show", number)
    assert "takes admin at the root" in shared.refused("ann", "audit", "list")
    records = json.loads(shared.ok(0, "audit", "list", "-o", "json"))["records"]
    told = [(r["user"], r["method"], r["outcome"]) for r in records]
    assert ("ann", "JobService/Submit", "OK") in told
    assert ("bob", "JobService/Get", "NOT_FOUND") in told
    noted = shared.ok(0, "audit", "verify").splitlines()[-1]
    shared.submit("ann", "research/nlp")
    shared.ok(0, "audit", "verify", "--noted", noted)
    (path,) = (shared.system.folder / "store" / "audit").iterdir()
    path.write_text(path.read_text().replace('"bob"', '"eve"'))
    assert "the audit was changed" in shared.refused(0, "audit", "verify")


def test_a_role_that_is_revoked_ends_what_is_followed(shared):
    shared.ok(0, "access", "grant", "oli", "operator", "research")
    number = shared.submit("ann", "research/nlp")
    uid = UIDS["oli"]
    following = subprocess.Popen(
        [shared.system.bin_dir / "muster", "wait", str(number)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=uid,
        group=uid,
        extra_groups=[],
        env=shared.system.environment() | {"HOME": "/"},
        cwd="/",
    )
    try:
        with pytest.raises(Failed):  # it waits: nothing runs the job
            wait_for("its end", lambda: following.poll() is not None, 1)
        shared.ok(0, "access", "revoke", "oli", "research")
        out, _ = following.communicate(timeout=10)
        assert following.returncode != 0 and "may not see this job any more" in out, out
    finally:
        following.kill()
