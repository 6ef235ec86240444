"""Tells people of jobs' ends: at least once, in order for each that is told, with growing pauses while that doesn't work."""

import http.client
import json
import logging
import smtplib
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import formatdate

from muster_exporter import http_client
from muster_exporter.config import Config, Reach, secret
from muster_exporter.store import Store

log = logging.getLogger("muster-exporter")
PAUSES_S = (1, 2, 5, 15, 60, 300)
GIVE_UP_S = 3 * 24 * 3600.0
TRIES_FIRST = 5  # then those behind it may pass
AT_ONCE = 64  # targets
TRIED_AGAIN = {408, 425, 429}  # of the answers that blame the request
_ENDS = {"SUCCEEDED": "succeeded", "FAILED": "failed", "CANCELLED": "cancelled"}
TROUBLE = (
    OSError,
    ValueError,
    http.client.HTTPException,
    http_client.Refused,
    smtplib.SMTPException,
    subprocess.SubprocessError,
)


class NotAllowed(Exception):
    """The exporter's settings don't let this job do it."""


def wanted(about: dict) -> list[tuple[str, str]]:
    """(kind, target) of who is to be told of this end."""
    notify = about["notify"]
    on = notify.get("on") or ["ended"]
    if "ended" not in on and _ENDS.get(about["state"]) not in on:
        return []
    return [(kind, notify[kind]) for kind in ("webhook", "mail") if notify.get(kind)]


Target = tuple[str, str]  # kind, and whom


class Messenger:
    """A thread a target, which sends what waits for it until something fails: one that hangs holds up nobody else's."""

    def __init__(
        self,
        store: Store,
        config: Config,
        now_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
    ):
        """`steady_s` times the pauses: a clock that is set back must not make them hours."""
        self._store, self._config, self._reach = store, config, Reach(config)
        self._now_s, self._steady_s = now_s, steady_s
        self._busy: dict[Target, threading.Thread] = {}
        self._failures: dict[Target, tuple[int, float]] = {}  # one after the other, not before

    def turn(self) -> None:
        """Begins to send what is due."""
        waiting: dict[Target, list[tuple]] = {}
        for notice in self._store.notices():
            waiting.setdefault((notice[2], notice[3]), []).append(notice)
        for kept in (self._failures, self._busy):
            for target in [target for target in list(kept) if target not in waiting]:
                kept.pop(target, None)
        for target, notices in waiting.items():
            busy = [one for one, thread in self._busy.items() if thread.is_alive()]
            if len(busy) >= AT_ONCE:
                return
            if target in busy or self._failures.get(target, (0, 0.0))[1] > self._steady_s():
                continue
            notices.sort(key=lambda notice: notice[6] >= TRIES_FIRST)
            thread = threading.Thread(target=self._serve, args=(target, notices), daemon=True)
            self._busy[target] = thread
            thread.start()

    def _serve(self, target: Target, notices: list[tuple]) -> None:
        try:
            for notice in notices:
                if (error := self._send(notice)) is not None:
                    return self._failed(target, notice, error)
                self._store.told(notice[0])
                self._failures.pop(target, None)
        except Exception as error:  # of the spool: what was sent is sent again
            log.warning("notices for %s: %s", target[0], error)
            self._failures[target] = (1, self._steady_s() + PAUSES_S[0])
        return None

    def _send(self, notice: tuple) -> Exception | None:
        """None: it needn't be sent again. Else why it didn't work."""
        _, _, kind, target, owner, text, _, since_s = notice
        about = json.loads(text)
        try:
            (self._post if kind == "webhook" else self._mail)(target, owner, about)
        except Exception as error:
            if isinstance(error, NotAllowed):
                log.warning("job %s: %s: %s; nobody is told", about["id"], kind, error)
                return None
            if not isinstance(error, TROUBLE):
                log.exception("job %s: %s", about["id"], kind)
            if _is_final(error) or self._now_s() - since_s >= GIVE_UP_S:
                log.warning("job %s: %s: given up, nobody is told: %s", about["id"], kind, error)
                return None
            return error
        return None

    def _failed(self, target: Target, notice: tuple, error: Exception) -> None:
        failures = self._failures.get(target, (0, 0.0))[0]
        pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        self._failures[target] = (failures + 1, self._steady_s() + pause_s)
        if notice[6] == 0:
            log.warning("job %s: %s: %s; it is tried again", *_whose(notice), error)
        self._store.put_off(notice[0], self._now_s() + pause_s, str(error))

    def _post(self, target: str, owner: str, about: dict) -> None:
        named = self._config.webhooks.get(target)
        if named is None and "://" not in target:
            raise NotAllowed(f"the exporter knows no webhook {target}")
        url = secret(named) if named is not None else target
        if named is None and (why := self._reach.why_not_url(url, owner)):
            raise NotAllowed(why)
        told = {
            name: about[name]
            for name in ("uid", "id", "name", "queue", "owner", "state", "cause", "detail")
        } | {name: about[name] for name in ("submit_ns", "start_ns", "end_ns")}
        told["text"] = sentence(about)
        headers = {"Content-Type": "application/json", "Muster-Job": about["uid"]}
        http_client.request("POST", url, json.dumps(told).encode(), headers)

    def _mail(self, target: str, owner: str, about: dict) -> None:
        if why := self._reach.why_not_mail(target, owner):
            raise NotAllowed(why)
        mail = self._config.mail
        message = EmailMessage()
        message["From"], message["To"] = mail.sender, target
        message["Subject"] = " ".join(sentence(about).split())[:200]
        message["Date"] = formatdate(self._now_s(), localtime=True)
        message["Message-ID"] = f"<{about['uid']}.end@muster>"
        lines = [sentence(about), "", about["detail"], "", f"muster show {about['id']}"]
        message.set_content("\n".join(lines))
        if mail.sendmail:
            subprocess.run(
                [mail.sendmail, "-i", "-f", mail.sender, "--", target],
                input=message.as_bytes(),
                check=True,
                timeout=60,
                capture_output=True,
            )
            return
        host, _, port = mail.smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=30) as server:
            if mail.starttls:
                server.starttls(context=ssl.create_default_context())
            if mail.user:
                server.login(mail.user, secret(mail.password_file))
            server.send_message(message)


def _is_final(error: Exception) -> bool:
    """An answer that blames the request: the next one would be the same."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    refused = isinstance(error, http_client.Refused)
    return refused and 400 <= error.status < 500 and error.status not in TRIED_AGAIN


def _whose(notice: tuple) -> tuple[str, str]:
    return json.loads(notice[5])["id"], notice[2]


def sentence(about: dict) -> str:
    end = _ENDS.get(about["state"], "ended")
    cause = f" ({about['cause'].lower()})" if end == "failed" and about["cause"] else ""
    return f"Job {about['id']} ({about['name']}) {end}{cause}"
