"""PyPI's Canaille on loopback with TLS, for row login-oidc: PORT KEY CERTIFICATE REDIRECT_URI. One user, ann, with the password `of a test`."""

import sys

from canaille import create_app
from canaille.app import models
from joserfc.jwk import RSAKey
from werkzeug.serving import run_simple

port, key, certificate, redirect = sys.argv[1:]
app = create_app(
    {
        "SECRET_KEY": "of a test",
        "SERVER_NAME": f"127.0.0.1:{port}",
        "PREFERRED_URL_SCHEME": "https",
        "CANAILLE": {"DATABASE": "memory", "LOGGING": None},
        "CANAILLE_OIDC": {
            "ACTIVE_JWKS": [
                RSAKey.generate_key(2048, {"kid": "c1", "use": "sig", "alg": "RS256"}).as_dict(
                    private=True
                )
            ]
        },
    }
)
with app.app_context(), app.backend.session():
    app.backend.save(
        models.User(
            user_name="ann",
            display_name="ann",
            family_name="Lee",
            formatted_name="Ann Lee",
            emails=["ann@example.org"],
            password="of a test",
        )
    )
    client = models.Client(
        client_id="muster",
        client_name="Muster",
        client_uri=f"https://127.0.0.1:{port}",
        token_endpoint_auth_method="none",
        grant_types=["authorization_code"],
        response_types=["code"],
        redirect_uris=[redirect],
        scope=["openid", "profile", "email"],
    )
    app.backend.save(client)
    client.audience = [client]
    app.backend.save(client)
run_simple("127.0.0.1", int(port), app, ssl_context=(certificate, key), threaded=True)
