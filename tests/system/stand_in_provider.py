"""A stand-in for an identity provider (OpenID Connect): on loopback with TLS by an authority of its own, tokens as the test wants them.

It logs in whoever comes, as `user`. Keys and signatures are openssl's. Standard library only.
"""

import base64
import hashlib
import json
import secrets
import ssl
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def openssl(*words, given: bytes = b"") -> bytes:
    command = ["openssl", *(str(word) for word in words)]
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def make_authority(folder: Path) -> Path:
    """ca.pem, and server.pem with server.key for 127.0.0.1 and localhost."""
    folder.mkdir(parents=True, exist_ok=True)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    ca, key = folder / "ca.pem", folder / "ca.key"
    # fmt: off
    openssl("req", "-x509", *curve, "-keyout", key, "-out", ca, "-days", "2", "-subj", "/CN=Test CA")
    openssl("req", "-x509", "-CA", ca, "-CAkey", key, *curve, "-keyout", folder / "server.key",
            "-out", folder / "server.pem", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE")
    # fmt: on
    return ca


class SigningKey:
    """An RSA key of 2048 bits."""

    def __init__(self, folder: Path, key_id: str):
        self.path, self.key_id = folder / f"{key_id}-{secrets.token_hex(4)}.key", key_id
        openssl(
            "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.path
        )
        modulus = openssl("rsa", "-in", self.path, "-noout", "-modulus").decode().strip()
        self.modulus = bytes.fromhex(modulus.split("=")[1])

    def jwk(self, **changes) -> dict:
        return {
            "kty": "RSA",
            "kid": self.key_id,
            "use": "sig",
            "alg": "RS256",
            "n": base64url(self.modulus),
            "e": "AQAB",
        } | changes

    def public_pem(self) -> bytes:
        return openssl("pkey", "-in", self.path, "-pubout")

    def sign(self, claims: dict, **header) -> str:
        header = {"alg": "RS256", "kid": self.key_id, "typ": "JWT"} | header
        text = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
        signature = openssl("dgst", "-sha256", "-sign", self.path, given=text.encode())
        return f"{text}.{base64url(signature)}"


class StandInProvider:
    CLIENT = "muster"

    def __init__(self, folder: Path):
        self.ca = make_authority(folder)
        self.key = SigningKey(folder, "k1")
        self.keys = [self.key.jwk()]
        self.user, self.subject = "ann", "4711"
        self.claims: dict = {}  # of tokens that it gives, besides or instead
        self.mode = "well"  # or: down, silent, redirects, huge, html
        self.asked: list[str] = []
        self.pending = 1  # polls of a device before it is granted
        self.lost = 0  # polls of a device that get no answer
        self.codes: dict[str, dict] = {}
        self.let_go = threading.Event()  # those that are kept waiting
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.issuer = f"https://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()

    def token(self, **changes) -> str:
        """A good one but for what changes."""
        key = changes.pop("key", self.key)
        header = changes.pop("header", {})
        return key.sign(self._claims(changes), **header)

    def _claims(self, changes: dict) -> dict:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": self.subject,
            "aud": self.CLIENT,
            "iat": now,
            "exp": now + 300,
            "preferred_username": self.user,
            "jti": secrets.token_hex(8),
        }
        merged = claims | changes | self.claims
        return {name: value for name, value in merged.items() if value is not None}

    # ---- what it answers ----

    def discovery(self) -> dict:
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "device_authorization_endpoint": f"{self.issuer}/device",
        }

    def authorize(self, asked: dict) -> str:
        """Where the browser goes on."""
        assert asked["response_type"] == "code", asked
        assert asked["code_challenge_method"] == "S256", asked
        assert asked["redirect_uri"].startswith("http://127.0.0.1:"), asked
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urllib.parse.urlencode(back)}"

    def give(self, asked: dict) -> dict:
        if asked.get("grant_type", "").endswith("device_code"):
            begun = self.codes.get(asked.get("device_code"), {})
            self.pending -= 1
            if self.pending >= 0:
                return {"error": "authorization_pending"}
        else:
            begun = self.codes.pop(asked.get("code"), {})
            challenge = base64url(hashlib.sha256(asked["code_verifier"].encode()).digest())
            if begun.get("code_challenge") != challenge:
                return {"error": "invalid_grant"}
            if begun["redirect_uri"] != asked["redirect_uri"]:
                return {"error": "invalid_grant"}
        if begun.get("client_id") != self.CLIENT or "openid" not in begun["scope"].split():
            return {"error": "invalid_client", "error_description": "not\x1b[31m you"}
        return {"token_type": "Bearer", "id_token": self.token(nonce=begun["nonce"])}

    def begin_device(self, asked: dict) -> dict:
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return {
            "device_code": code,
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.issuer}/enter",
            "expires_in": 60,
            "interval": 1,
        }

    def _handler(self):
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                provider.asked.append(path)
                asked = dict(urllib.parse.parse_qsl(query))
                if path == "/authorize":
                    self.go(provider.authorize(asked))
                elif provider.mode == "silent":
                    provider.let_go.wait(60)
                elif provider.mode == "redirects":
                    self.go("https://127.0.0.1:1/elsewhere")
                elif provider.mode in ("down", "huge", "html"):
                    body = b"<html>" if provider.mode != "huge" else b"[" * (1 << 20)
                    self.answer(body, 503 if provider.mode == "down" else 200)
                elif path == "/keys":
                    self.answer(json.dumps({"keys": provider.keys}).encode())
                else:
                    self.answer(json.dumps(provider.discovery()).encode())

            def do_POST(self):
                provider.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked = dict(urllib.parse.parse_qsl(body))
                if self.path == "/token" and provider.lost > 0:
                    provider.lost -= 1
                    self.close_connection = True
                    return
                said = (
                    provider.begin_device(asked) if self.path == "/device" else provider.give(asked)
                )
                self.answer(json.dumps(said).encode(), 400 if "error" in said else 200)

            def answer(self, body: bytes, status: int = 200):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def go(self, where: str):
                self.send_response(302)
                self.send_header("Location", where)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        return Handler
