// npm's oidc-provider (panva) on loopback with TLS, for row login-oidc: PORT KEY CERTIFICATE. Whoever comes is who they say.
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

const [port, key, certificate] = process.argv.slice(2);
const signing = (type, options, jwk) => ({ ...generateKeyPairSync(type, options).privateKey.export({ format: "jwk" }), ...jwk });
const provider = new Provider(`https://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "muster",
      token_endpoint_auth_method: "none",
      application_type: "native",
      grant_types: ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
      response_types: ["code"],
      redirect_uris: ["http://127.0.0.1/callback"],
      id_token_signed_response_alg: "ES256",
    },
  ],
  jwks: {
    keys: [
      signing("rsa", { modulusLength: 2048 }, { kid: "r1", use: "sig", alg: "RS256" }),
      signing("ec", { namedCurve: "P-256" }, { kid: "e1", use: "sig", alg: "ES256" }),
    ],
  },
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email", "email_verified"] },
  conformIdTokenClaims: false,
  enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "PS256"] },
  features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true } },
  cookies: { keys: ["of a test"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, email: `${id}@example.org`, email_verified: true }),
  }),
});
createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, provider.callback()).listen(Number(port), "127.0.0.1");
