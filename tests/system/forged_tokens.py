"""Tokens that must let nobody in, each as a login by the stand-in's issuer (stand_in_provider.py)."""

import hashlib
import hmac
import json
import time

from stand_in_provider import SigningKey, base64url


def hs256(provider) -> str:
    header = base64url(json.dumps({"alg": "HS256", "kid": "k1"}).encode())
    claims = provider.token().split(".")[1]
    secret = provider.key.public_pem()
    mac = hmac.new(secret, f"{header}.{claims}".encode(), hashlib.sha256).digest()
    return f"{header}.{claims}.{base64url(mac)}"


def forged(provider, folder) -> dict[str, tuple[str, str]]:
    """What -> the token, and what is said of it."""
    now = int(time.time())
    other = SigningKey(folder / "provider", "k1")
    unlisted = SigningKey(folder / "provider", "k9")
    good = provider.token()
    header, claims, signature = good.split(".")
    none = base64url(json.dumps({"alg": "none", "kid": "k1"}).encode())
    evil = base64url(json.dumps({"iss": provider.issuer, "preferred_username": "root"}).encode())
    return {
        "alg none": (f"{none}.{claims}.", "RS256"),
        "alg none, signature kept": (f"{none}.{claims}.{signature}", "RS256"),
        "wrong key": (provider.token(key=other), "didn't make"),
        "wrong kid": (provider.token(key=unlisted), "doesn't list"),
        "kid of a key for encryption": (provider.token(header={"kid": "enc"}), "doesn't list"),
        "wrong issuer": (provider.token(iss="https://evil.example"), "issuer"),
        "wrong audience": (provider.token(aud="grafana"), "another program"),
        "issued to another": (provider.token(aud=["muster", "x"], azp="x"), "issued to"),
        "expired": (provider.token(iat=now - 400, exp=now - 100), "has expired"),
        "not yet valid": (provider.token(nbf=now + 300), "counts later"),
        "too old": (provider.token(iat=now - 3600), "too long ago"),
        "another key's nonce": (provider.token(nonce="ab" * 32), "another key"),
        "altered": (f"{header}.{evil}.{signature}", "didn't make"),
        "cut off": (good[:-22], "didn't make"),
        "access token": (provider.token(header={"typ": "at+jwt"}), "another kind"),
        "oversize": (provider.token(more="x" * 12_000), "16 KiB"),
        "HS256 with the public key": (hs256(provider), "RS256"),
        "garbage": ("a.b.c", "three parts"),
        "empty": ("", "three parts"),
    }
