"""Notices: in order, again after what passes, not after what doesn't; and one that fails for itself blocks nobody for long."""

import email
import json
import smtplib
import ssl
import time

import pytest
from muster_exporter import http_client, notices
from muster_exporter.config import from_dict
from muster_exporter.notices import GIVE_UP_S, PAUSES_S, Messenger

MAIL = {"mail": {"smtp": "mail.example.org:587", "sender": "muster@example.org"}}


class Sending:
    def __init__(self, store, about, tmp_path, monkeypatch):
        self.store, self.about, self.now_s = store, about, 1e9
        self.set_back_s = 0
        (tmp_path / "room").write_text("http://127.0.0.1:1/")
        self.given = {"data_dir": str(tmp_path), "webhooks": {"room": str(tmp_path / "room")}}
        self.tried, self.told, self.answers = [], [], {}
        monkeypatch.setattr(http_client, "request", self._request)
        self.messenger = self.begin()

    def begin(self, more=None):
        config = from_dict(self.given | (more or {}), "x")
        config.user = "exporter"
        return Messenger(
            self.store, config, lambda: self.now_s - self.set_back_s, lambda: self.now_s
        )

    def end(self, *names, kind="webhook", target="room"):
        for name in names:
            its = self.about | {"uid": name, "id": name, "name": name, "state": "FAILED"}
            self.store.keep_job(name, its, [])
            self.store.end_job(name, its, [(kind, target)], self.now_s)

    def turn(self, pass_s=0.0):
        self.now_s += pass_s
        self.messenger.turn()
        for thread in list(self.messenger._busy.values()):
            thread.join(10)
            assert not thread.is_alive()

    def _request(self, _method, _url, body, _headers):
        name = json.loads(body)["name"]
        self.tried.append(name)
        if error := self.answers.get(name, self.answers.get("*")):
            raise error
        self.told.append(name)


@pytest.fixture
def sending(store, about, tmp_path, monkeypatch):
    return Sending(store, about, tmp_path, monkeypatch)


def test_a_queue_is_sent_at_once_and_in_order(sending):
    sending.end(*"abcde")
    sending.turn()
    assert sending.told == list("abcde") and sending.store.notices() == []


def test_a_target_that_is_away_is_tried_after_growing_pauses_and_then_in_order(sending):
    sending.end("a", "b")
    sending.answers["*"] = OSError("away")
    for pause_s in PAUSES_S[:4]:
        sending.turn()
        tried = len(sending.tried)
        sending.turn(pause_s - 0.1)
        assert len(sending.tried) == tried, f"{pause_s} s are not over"
        sending.now_s += 0.1
    assert set(sending.tried) == {"a"}
    sending.answers.clear()
    sending.turn()
    assert sending.told == ["a", "b"]


def test_a_clock_that_is_set_back_makes_no_pause_longer(sending):
    sending.end("a")
    sending.answers["*"] = OSError("away")
    sending.turn()
    sending.answers.clear()
    sending.set_back_s = 5 * 3600
    sending.turn(PAUSES_S[0])
    assert sending.told == ["a"]


def test_a_restart_tries_at_once(sending):
    sending.end("a")
    sending.answers["*"] = OSError("away")
    for _ in range(9):
        sending.turn(1000)
    sending.answers.clear()
    sending.messenger = sending.begin()
    sending.turn()
    assert sending.told == ["a"]


def test_after_three_days_it_is_given_up(sending, caplog):
    sending.end("a")
    sending.answers["*"] = http_client.Refused(503, "busy")
    sending.turn()
    sending.turn(GIVE_UP_S - 10)
    assert len(sending.store.notices()) == 1
    sending.turn(1000)
    assert sending.store.notices() == [] and "given up" in caplog.text


@pytest.mark.parametrize("status", [400, 404, 413])
def test_an_answer_that_blames_the_notice_gives_it_up(sending, caplog, status):
    sending.end("poison", "ok")
    sending.answers["poison"] = http_client.Refused(status, "too long")
    sending.turn()
    assert sending.told == ["ok"] and sending.store.notices() == []
    assert "job poison: webhook: given up" in caplog.text


@pytest.mark.parametrize(
    "error", [http_client.Refused(status, "") for status in (408, 425, 429, 500)]
)
def test_one_that_fails_for_itself_lets_others_pass_after_five_tries(sending, error):
    sending.end("poison", "ok", "fine")
    sending.answers["poison"] = error
    waited_s = 0
    while len(sending.told) < 2:
        sending.turn()
        sending.now_s += 1
        waited_s += 1
    assert sending.told == ["ok", "fine"] and waited_s < 120
    assert sending.tried[:5] == ["poison"] * 5
    sending.end("next")
    sending.turn(301)
    assert sending.told[-1] == "next", "a new one doesn't wait for it at all"
    assert len(sending.store.notices()) == 1


def test_a_spool_that_cant_be_written_ends_no_thread(sending, monkeypatch):
    sending.end("a")
    with monkeypatch.context() as broken:
        broken.setattr(sending.store, "told", lambda _: 1 / 0)
        sending.turn()
    sending.turn(2)
    assert sending.told == ["a", "a"] and sending.store.notices() == []


class Server:
    """In place of smtplib.SMTP."""

    def __init__(self, host, port, timeout):
        self.sent, self.context, Server.last = [], None, self
        assert (host, port) == ("mail.example.org", 587) and timeout <= 60

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def starttls(self, context):
        self.context = context

    def send_message(self, message):
        self.sent.append(email.message_from_bytes(message.as_bytes()))


def test_a_mail_goes_by_checked_tls_has_a_date_and_reaches_allowed_domains_alone(
    sending, monkeypatch, caplog
):
    monkeypatch.setattr(smtplib, "SMTP", Server)
    sending.now_s = time.time()
    sending.messenger = sending.begin({"mail": MAIL["mail"] | {"domains": ["Example.org"]}})
    sending.end("a", kind="mail", target="ann@example.ORG")
    sending.end("b", kind="mail", target="ann@elsewhere.net")
    sending.end("c", kind="mail", target="ann@sub.example.org")
    sending.turn()
    (message,) = Server.last.sent
    assert message["To"] == "ann@example.ORG" and message["Message-ID"] == "<a.end@muster>"
    sent_s = email.utils.parsedate_to_datetime(message["Date"]).timestamp()
    assert abs(sent_s - sending.now_s) < 2
    context = Server.last.context
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert caplog.text.count("is not among mail.domains") == 2 and sending.store.notices() == []


def test_a_recipient_that_isnt_there_is_given_up(sending):
    told = smtplib.SMTPRecipientsRefused({"a@b": (550, b"no such user")})
    later = smtplib.SMTPRecipientsRefused({"a@b": (451, b"greylisted")})
    assert notices._is_final(told) and not notices._is_final(later)
