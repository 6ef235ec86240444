"""Tells people of jobs' ends: at least once, in order for each that is told, with growing pauses while that doesn't work."""

import http.client
import json
import logging
import smtplib
import subprocess
import threading
import time
from email.message import EmailMessage

from muster_exporter import http_client
from muster_exporter.config import Config, Reach, secret
from muster_exporter.store import Store

log = logging.getLogger("muster-exporter")
PAUSES_S = (1, 2, 5, 15, 60, 300)
GIVE_UP_S = 3 * 24 * 3600.0
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


class Messenger:
    """A thread a target: one that hangs holds up nobody else's."""

    def __init__(self, store: Store, config: Config):
        self._store, self._config, self._reach = store, config, Reach(config)
        self._busy: dict[tuple[str, str], threading.Thread] = {}

    def turn(self) -> None:
        """Sends what is due: to each target its oldest, and only that."""
        now_s, seen = time.time(), set()
        for notice in self._store.notices():
            target = (notice[2], notice[3])
            if target in seen:
                continue
            seen.add(target)
            busy = self._busy.get(target)
            if notice[8] > now_s or (busy is not None and busy.is_alive()):
                continue
            thread = threading.Thread(target=self._send, args=(notice,), daemon=True)
            self._busy[target] = thread
            thread.start()
        self._busy = {target: thread for target, thread in self._busy.items() if target in seen}

    def _send(self, notice: tuple) -> None:
        number, uid, kind, target, owner, text, tries, since_s, _ = notice
        about = json.loads(text)
        try:
            if kind == "webhook":
                self._post(target, owner, about)
            else:
                self._mail(target, owner, about)
        except NotAllowed as error:
            log.warning("job %s: %s: %s; nobody is told", about["id"], kind, error)
        except Exception as error:
            if not isinstance(error, TROUBLE):
                log.exception("job %s: %s", about["id"], kind)
            if time.time() - since_s < GIVE_UP_S:
                if tries == 0:
                    log.warning("job %s: %s: %s; it is tried again", about["id"], kind, error)
                pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                self._store.put_off(number, time.time() + pause_s, str(error))
                return
            log.warning("job %s: %s: given up after three days: %s", about["id"], kind, error)
        self._store.told(number)

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
                server.starttls()
            if mail.user:
                server.login(mail.user, secret(mail.password_file))
            server.send_message(message)


def sentence(about: dict) -> str:
    end = _ENDS.get(about["state"], "ended")
    cause = f" ({about['cause'].lower()})" if end == "failed" and about["cause"] else ""
    return f"Job {about['id']} ({about['name']}) {end}{cause}"
