#!/usr/bin/env python3
"""Row `login-oidc`: logins by two real identity providers, and forged and stale tokens at the same door.

    login_oidc.py [--quick]

The providers are npm's oidc-provider (panva) and PyPI's Canaille, on loopback with TLS by an authority of the row's, in environments that the row makes
where they can be had; one that can't be is counted as skipped. Each logs in a user in what stands for a browser: pages are followed, forms filled in. The
forged tokens are tests/system/forged_tokens.py, by a stand-in, as a real provider signs none. --quick: one login by each, no latencies.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, at_least, figure, quantile, say_failed
from forged_tokens import forged
from local_system import Failed, LocalSystem, kill_all, system_folder, wait_for
from login_system import LoginSystem, free_ports
from stand_in_provider import StandInProvider, make_authority

LOGINS = ROOT / "bench" / "logins"
CACHE = Path(os.environ.get("MUSTER_CACHE_DIR") or Path.home() / ".cache" / "muster")
PANVA = "oidc-provider@9.13.3"
PASSWORD = "of a test"
BROWSER = """\
#!/bin/sh
exec {python} {logins}/browser.py {ca} ann "{password}" - "$1" > {log} 2>&1
"""


def made(name: str, key: str, make) -> Path | None:
    """A folder of the cache that `make` fills once; None where it can't."""
    place = CACHE / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if (place / ".complete").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        make(place)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{name} can't be installed: {error}", flush=True)
        shutil.rmtree(place, ignore_errors=True)
        return None
    (place / ".complete").touch()
    return place


def run(*words) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=300)


def panva() -> Path | None:
    words = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    return made("login-panva", PANVA, lambda place: run(*words, "--prefix", place, PANVA))


def canaille() -> Path | None:
    requirements = ROOT / "bench" / "requirements-login.txt"

    def make(place: Path) -> None:
        run(sys.executable, "-m", "venv", place)
        run(place / "bin" / "pip", "install", "--no-input", "-q", "-r", requirements)

    return made("login-canaille", requirements.read_text(), make)


class RealProvider:
    """`words` start it; the browser comes back to `redirect_port`, if it wants that one."""

    def __init__(self, name: str, ca: Path, port: int, words: list, redirect_port: int = 0):
        self.name, self.ca, self.words = name, ca, words
        self.issuer = f"https://127.0.0.1:{port}"
        self.redirect_port = redirect_port
        self.process = None

    def start(self, folder: Path) -> None:
        log = (folder / f"{self.name}.log").open("w")
        self.process = subprocess.Popen(
            [str(word) for word in self.words], stdout=log, stderr=log, cwd=folder
        )
        url = f"{self.issuer}/.well-known/openid-configuration"
        asked = ["curl", "-sf", "--cacert", str(self.ca), "-o", "/dev/null", url]
        wait_for(
            f"{self.name} to answer: {(folder / f'{self.name}.log').read_text()[-500:]}",
            lambda: subprocess.run(asked).returncode == 0,
            40,
            0.2,
        )

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)

    def rules(self) -> dict:
        return {"issuer": self.issuer, "client_id": "muster", "ca": str(self.ca)}


def real_providers(folder: Path) -> list[RealProvider]:
    ca = make_authority(folder)
    key, certificate = folder / "server.key", folder / "server.pem"
    first, second, back = free_ports(3)
    found = []
    if (place := panva()) is not None:
        # It finds its packages beside itself.
        script = shutil.copy(LOGINS / "panva.mjs", place)
        found.append(RealProvider("panva", ca, first, ["node", script, first, key, certificate]))
    if (place := canaille()) is not None:
        redirect = f"http://127.0.0.1:{back}/callback"
        words = [place / "bin" / "python", LOGINS / "canaille_server.py", second, key, certificate]
        found.append(RealProvider("canaille", ca, second, [*words, redirect], back))
    return found


def log_in(logins: LoginSystem, provider: RealProvider, user: str) -> float:
    """Seconds, from the command's start until it has its certificate."""
    log = logins.home(user) / "browser.log"
    text = BROWSER.format(
        python=sys.executable, logins=LOGINS, ca=provider.ca, password=PASSWORD, log=log
    )
    port = ["--redirect-port", provider.redirect_port] if provider.redirect_port else []
    began = time.monotonic()
    done = logins.by_browser(user, provider.ca, provider.issuer, *port, browser=text)
    took = time.monotonic() - began
    if done.returncode != 0 or "You are ann" not in done.stdout + done.stderr:
        raise Failed(f"{provider.name}: {done.stderr} {log.read_text()[-500:]}")
    if logins.muster(user, "ping").returncode != 0:
        raise Failed(f"{provider.name}: the certificate doesn't count")
    return took


def log_in_by_code(logins: LoginSystem, provider: RealProvider, user: str) -> None:
    """What `muster login --device` shows is entered in a browser. This provider's tokens have no nonce then."""
    where = ["login", f"127.0.0.1:{logins.join}", "--ca", logins.fingerprint()]
    command = subprocess.Popen(
        [str(BIN / "muster"), *where, "--device", "--provider-ca", str(provider.ca)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(logins.home(user))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    words = command.stderr.readline().split()
    if words[:1] != ["Open"]:
        raise Failed(f"{provider.name}: {' '.join(words)} {command.stderr.read()}")
    browser = [sys.executable, LOGINS / "browser.py", provider.ca, "ann", PASSWORD]
    entered = subprocess.run(
        [str(word) for word in (*browser, words[-1], words[1])], capture_output=True, text=True
    )
    said = command.communicate(timeout=60)[1]
    if command.returncode != 0 or logins.muster(user, "ping").returncode != 0:
        raise Failed(f"{provider.name}: {said} {entered.stdout[-500:]} {entered.stderr[-500:]}")


def by_real_providers(folder: Path, providers: list[RealProvider], times: int) -> bool:
    """Each is another scheduler's: ann is another subject with each, whose name is the first's."""
    ok = True
    for provider in providers:
        with ExitStack() as stack:
            system = LocalSystem(folder / provider.name[0], BIN)
            stack.callback(kill_all, folder)
            provider.start(folder)
            stack.callback(provider.close)
            logins = LoginSystem(system)
            logins.start([provider.rules()])
            took = [log_in(logins, provider, f"u{n}") for n in range(times)]
            ok &= figure(f"logins by {provider.name}", len(took), f"of {times}", times, True)
            if provider.name == "panva":
                logins.change('"client_id"', '"without_nonce": true, "client_id"')
                log_in_by_code(logins, provider, "coder")
                figure("logins by panva with a code (--device)", 1, "of 1", 1, True)
            if times > 1:
                figure(f"{provider.name}: median", round(quantile(took, 0.5), 2), "s")
    return ok


def by_forgers(folder: Path) -> bool:
    provider = StandInProvider(folder / "provider")
    try:
        logins = LoginSystem(LocalSystem(folder / "f", BIN))
        logins.start(
            [
                {
                    "issuer": provider.issuer,
                    "client_id": provider.CLIENT,
                    "ca": str(provider.ca),
                    "without_nonce": True,
                }
            ]
        )
        provider.keys.append(provider.key.jwk(kid="enc", use="enc"))
        once = provider.token()
        first = logins.by_token("ann", once).returncode == 0
        tokens = {what: token for what, (token, _) in forged(provider, folder).items()}
        tokens["replayed"] = once
        got_in = [
            what for what, token in tokens.items() if logins.by_token("eve", token).returncode == 0
        ]
        for what in got_in:
            print(f"got in: {what}", flush=True)
        others = logins.users() - {"ann"}
        at_least("forged and stale tokens tried", len(tokens), "", 8)
        held = first and not got_in and not others
        return figure("of them let in", len(got_in), "", 0, held) and len(tokens) >= 8
    finally:
        provider.close()
        kill_all(folder)


def main() -> int:
    if os.geteuid() != 0:
        return say_failed(Failed("administers as root"))
    times = 1 if "--quick" in sys.argv else 10
    with system_folder() as folder:
        try:
            providers = real_providers(folder / "tls")
            ok = by_real_providers(folder, providers, times)
            ok &= by_forgers(folder)
        except Failed as error:
            return say_failed(error)
    skipped = 2 - len(providers)
    figure("real providers skipped: they can't be installed here", skipped, "of 2")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
