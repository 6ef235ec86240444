"""Login by identity providers: a stand-in for one, the real command, the real musterd, TLS between all of them."""

import json
import os
import time
import urllib.request

import pytest
from forged_tokens import forged
from local_system import wait_for
from login_system import LoginSystem
from stand_in_provider import StandInProvider

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="administers as root")

NAMES = "the name that your provider gives you"


@pytest.fixture
def provider(folder):
    stand_in = StandInProvider(folder / "provider")
    yield stand_in
    stand_in.close()


def issuer_of(provider, **more) -> dict:
    return {"issuer": provider.issuer, "client_id": provider.CLIENT, "ca": str(provider.ca)} | more


@pytest.fixture
def logins(bare, provider):
    system = LoginSystem(bare)
    system.start([issuer_of(provider)])
    return system


@pytest.fixture
def programs(bare, provider):
    """Tokens that are bound to no key count, too: only so a test can hand in one of its own."""
    system = LoginSystem(bare)
    system.start([issuer_of(provider, without_nonce=True)])
    return system


def test_a_login_in_a_browser_makes_a_user(logins, provider):
    done = logins.by_browser("ann", provider.ca)
    assert done.returncode == 0, done.stderr
    assert "You are ann" in done.stdout + done.stderr
    # A certificate gives no role, as ever.
    assert logins.muster("ann", "ping").returncode == 0
    assert logins.muster("ann", "access", "grant", "ann", "admin", "/").returncode != 0
    record = next(r for r in logins.audit() if r["method"] == "JoinService/LogIn")
    assert record["outcome"] == "OK", record
    assert f'"ann" by {provider.issuer} subject "4711"' in record["detail"], record
    assert "/user/ann" in record["detail"], record
    metrics = f"http://127.0.0.1:{logins.metrics_port}/metrics"
    counted = 'muster_provider_logins_total{outcome="issued"} 1'
    wait_for(
        "the login to be counted",
        lambda: counted in urllib.request.urlopen(metrics, timeout=5).read().decode(),
        10,
    )


def test_a_login_with_a_code_needs_no_browser_and_a_logout_forgets_it(logins, provider):
    done = logins.log_in("ann", "--device", "--provider-ca", provider.ca)
    assert done.returncode == 0, done.stderr
    assert "WDJB-MJHT" in done.stderr
    assert "Commands go there from now on" in done.stdout, done.stdout
    assert logins.muster("ann", "ping").returncode == 0
    left = logins.muster("ann", "logout")
    assert left.returncode == 0, left.stderr
    assert not list((logins.home("ann") / ".config/muster").iterdir())
    assert logins.muster("ann", "ping").returncode != 0


def test_a_login_with_a_code_outlives_a_lost_answer_and_asks_less_often(logins, provider):
    provider.lost, provider.pending = 1, 0
    began = time.monotonic()
    done = logins.log_in("ann", "--device", "--provider-ca", provider.ca)
    assert done.returncode == 0, done.stderr
    assert provider.asked.count("/token") == 2
    assert time.monotonic() - began > 3, "1 s, and twice that after the answer that was lost"


def test_a_token_that_is_bound_to_no_key_counts_only_where_it_is_said(logins, provider):
    done = logins.by_token("ann", provider.token())
    assert done.returncode != 0
    assert "bound to no key" in done.stderr, done.stderr
    assert "without_nonce" in done.stderr, done.stderr


def test_a_token_counts_once_and_after_a_restart_no_more_often(programs, provider):
    token = provider.token()
    assert programs.by_token("ann", token).returncode == 0
    for _ in range(2):
        again = programs.by_token("thief", token)
        assert again.returncode != 0
        assert "used already" in again.stderr, again.stderr
        # Whatever is kept of ann goes, and comes back.
        programs.system.run(["user", "revoke", "ann"])
        programs.system.run(["user", "invite", "ann"])
        programs.restart()
    assert programs.muster("thief", "ping").returncode != 0


def test_forged_and_stale_tokens_let_nobody_in(programs, provider, folder):
    provider.keys.append(provider.key.jwk(kid="enc", use="enc"))
    tokens = forged(provider, folder)
    for what, (token, says) in tokens.items():
        done = programs.by_token("mallory", token)
        assert done.returncode != 0, what
        assert says in done.stderr, (what, done.stderr)
    assert programs.users() == set()
    denied = [r for r in programs.audit() if r["method"] == "JoinService/LogIn"]
    assert len(denied) == len(tokens), denied
    assert {r["outcome"] for r in denied} == {"UNAUTHENTICATED"}
    assert provider.asked.count("/keys") <= 2, "whoever names unknown keys makes no load"
    assert programs.by_token("ann", provider.token()).returncode == 0


def test_names_of_others_are_refused_with_one_sentence(programs, provider):
    assert programs.by_token("ann", provider.token()).returncode == 0
    programs.system.run(["user", "invite", "bob"])
    said = set()
    for name, subject in (
        ("ann", "4712"),
        ("bob", "1"),
        ("root", "2"),
        ("daemon", "3"),
        ("Ann", "4711"),
        ("x" * 33, "5"),
        ("\x1b[31mann", "6"),
    ):
        done = programs.by_token("eve", provider.token(preferred_username=name, sub=subject))
        assert done.returncode != 0, name
        assert NAMES in done.stderr, done.stderr
        said.add(done.stderr)
    assert len(said) == 1, said
    why = [r["detail"] for r in programs.audit() if r["outcome"] == "PERMISSION_DENIED"]
    assert not any("\x1b" in detail for detail in why), why
    for reason in ("another of its subjects", "invited", "reserved", "no name of a user"):
        assert any(reason in detail for detail in why), (reason, why)


def test_whoever_is_revoked_stays_out_until_they_are_invited(programs, provider):
    assert programs.by_token("ann", provider.token()).returncode == 0
    programs.system.run(["user", "revoke", "ann"])
    wait_for("ann to be out", lambda: programs.muster("ann", "ping").returncode != 0, 10)
    assert NAMES in programs.by_token("ann", provider.token()).stderr
    programs.system.run(["user", "invite", "ann"])
    assert programs.by_token("ann", provider.token()).returncode == 0
    assert programs.muster("ann", "ping").returncode == 0


def test_groups_of_the_token_are_roles_where_they_are_bound(bare, provider):
    system = LoginSystem(bare)
    groups = {"groups_claim": "groups", "groups": ["nlp"], "without_nonce": True}
    system.start([issuer_of(provider, **groups)])
    system.system.run(["access", "grant", "group:nlp", "operator", "research"])
    assert system.by_token("ann", provider.token(groups=["nlp", "admins"])).returncode == 0
    shown = json.loads(system.muster("ann", "access", "check", "research", "-o", "json").stdout)
    assert shown["role"] == "ROLE_OPERATOR", shown
    system.by_token("ann", provider.token(groups=[]))
    again = json.loads(system.muster("ann", "access", "check", "research", "-o", "json").stdout)
    assert again["role"] != "ROLE_OPERATOR", again


@pytest.mark.parametrize("mode", ["down", "silent", "redirects", "huge", "html"])
def test_a_provider_that_fails_hurts_nobody_else(programs, provider, mode):
    provider.mode = mode
    began = time.monotonic()
    done = programs.by_token("ann", provider.token())
    assert done.returncode != 0
    assert "can't read the keys" in done.stderr, done.stderr
    assert time.monotonic() - began < 10
    # Invitations and calls go on meanwhile.
    line = programs.system.run(["user", "invite", "bob"]).stdout.split()[1:]
    began = time.monotonic()
    assert programs.muster("bob", *line).returncode == 0
    assert programs.muster("bob", "ping").returncode == 0
    assert time.monotonic() - began < 5
    assert "keys of an identity provider can't be read" in programs.system.log_tail("musterd", 50)
    provider.let_go.set()
    provider.mode = "well"
    wait_for(
        "the provider to be asked again",
        lambda: programs.by_token("ann", provider.token()).returncode == 0,
        20,
        0.5,
    )


def test_a_provider_with_another_authority_is_not_believed(bare, provider, folder):
    liar = StandInProvider(folder / "liar")
    try:
        system = LoginSystem(bare)
        system.start([issuer_of(provider, ca=str(liar.ca), without_nonce=True)])
        done = system.by_token("ann", provider.token())
        assert "can't read the keys" in done.stderr, done.stderr
        assert provider.asked == []
    finally:
        liar.close()


def test_an_answer_of_somebody_else_is_no_login(logins, provider):
    provider.claims = {"nonce": "00" * 32}
    done = logins.by_browser("ann", provider.ca)
    assert done.returncode != 0
    assert "another key" in done.stderr, done.stderr


def test_what_is_asked_for_wrongly_names_the_remedy(logins, provider):
    both = logins.log_in("ann", "--oidc", "--token", "mst_a_b")
    assert both.returncode == 2 and "one of both" in both.stderr, both.stderr
    neither = logins.log_in("ann")
    assert neither.returncode == 2 and "--oidc" in neither.stderr, neither.stderr
    other = logins.log_in("ann", "--oidc", "https://nobody.example")
    assert other.returncode == 2 and provider.issuer in other.stderr, other.stderr


def test_where_no_provider_is_named_the_invitation_is(bare, provider):
    system = LoginSystem(bare)
    system.start([])
    for done in (system.by_token("ann", provider.token()), system.log_in("ann", "--oidc")):
        assert done.returncode != 0
        assert "has no oidc:" in done.stderr, done.stderr
        assert "muster user invite" in done.stderr, done.stderr
