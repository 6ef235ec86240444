// muster login: become known to a scheduler on another machine.
#include <iostream>
#include <iterator>
#include <memory>

#include <CLI/CLI.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/login_lock.h"
#include "cli/provider/provider.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/units.h"
#include "common/oidc/jws.h"
#include "network/client.h"

namespace muster {
namespace {

struct LoginOptions {
  JoinLine line;
  std::string context = "default";
  // By an identity provider:
  CLI::Option* by_provider = nullptr;
  std::string issuer;  // empty: the only one
  bool device = false;
  std::string id_token_file, provider_ca;
  int redirect_port = 0;

  bool ByProvider() const { return by_provider->count() > 0 || device || !id_token_file.empty(); }
};

absl::StatusOr<std::string> TokenIn(const std::string& path) {
  absl::StatusOr<std::string> text;
  if (path == "-") {
    std::string read(kMaxTokenBytes + 2, '\0');
    std::cin.read(read.data(), static_cast<std::streamsize>(read.size()));
    read.resize(static_cast<size_t>(std::cin.gcount()));
    text = std::move(read);
  } else {
    text = ReadFile(path, kMaxTokenBytes + 2);
  }
  if (!text.ok()) return text;
  return std::string(absl::StripAsciiWhitespace(*text));
}

// The one that is asked for, of those whose users this scheduler lets in.
absl::StatusOr<v1::ListProvidersResponse::Provider> Choose(const JoinDoor& door,
                                                           const std::string& issuer) {
  const absl::StatusOr<v1::ListProvidersResponse> response = door.ListProviders();
  if (!response.ok()) return response.status();
  std::vector<std::string> issuers;
  for (const auto& provider : response->providers()) {
    if (provider.issuer() == issuer || (issuer.empty() && response->providers_size() == 1))
      return provider;
    issuers.push_back(provider.issuer());
  }
  if (issuers.empty()) {
    return absl::FailedPreconditionError(
        "nobody logs in by an identity provider there: its musterd.yaml has no oidc:. Ask for an "
        "invitation: muster user invite");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(issuer.empty() ? "--oidc: name one of several" : "--oidc: there is none of this",
                   "; it lets in users of ", absl::StrJoin(issuers, ", ")));
}

absl::StatusOr<Identity> LogInByProvider(Session& session, const LoginOptions& options) {
  const absl::StatusOr<JoinDoor> door =
      JoinDoor::Reach(options.line.address, options.line.fingerprint);
  if (!door.ok()) return door.status();
  const std::string key = NewKey();
  if (!options.id_token_file.empty()) {
    const absl::StatusOr<std::string> token = TokenIn(options.id_token_file);
    if (!token.ok()) return token.status();
    return door->LogIn(key, *token);
  }
  const absl::StatusOr<v1::ListProvidersResponse::Provider> provider =
      Choose(*door, options.issuer);
  if (!provider.ok()) return provider.status();
  const absl::StatusOr<std::string> key_hash = KeyHash(key);
  if (!key_hash.ok()) return key_hash.status();
  ProviderClient client;
  client.issuer = provider->issuer();
  client.client_id = provider->client_id();
  client.scopes.assign(provider->scopes().begin(), provider->scopes().end());
  client.ca_file = options.provider_ca;
  client.nonce = NonceOf(*key_hash);
  client.redirect_port = options.redirect_port;
  client.say = [&session](const std::string& text) { session.Err(text); };
  const absl::StatusOr<std::string> token =
      options.device ? TokenByDevice(client) : TokenByBrowser(client);
  if (!token.ok()) return token.status();
  return door->LogIn(key, *token);
}

int Keep(Session& session, const LoginOptions& options, const Identity& identity) {
  const std::string config = ClientConfigPath(ProcessEnvironment);
  const std::string path = LoginPathOf(config, options.context);
  absl::Status kept = MakeDirectories(path.substr(0, path.rfind('/')));
  if (kept.ok()) kept = SaveIdentity(path, identity);
  if (!kept.ok()) return session.Fail(kept);
  // The first login is what commands without --context use.
  const bool first = absl::IsNotFound(ReadFile(config, kMaxPemBytes).status());
  if (first) {
    kept = WriteFileDurably(config, absl::StrCat("current_context: ", options.context, "\n"), 0644);
    if (!kept.ok()) return session.Fail(kept);
  }
  const std::string named_here = !ProcessEnvironment("MUSTER_SERVER").empty()    ? "MUSTER_SERVER"
                                 : !ProcessEnvironment("MUSTER_CONTEXT").empty() ? "MUSTER_CONTEXT"
                                                                                 : "";
  session.Say(absl::StrCat(
      "You are ", identity.holder.name, " at ", identity.addresses.front(), " (context ",
      options.context, ").",
      first && named_here.empty()
          ? absl::StrCat(" Commands go there from now on, and to no server of this machine, as ",
                         config, " says; muster logout ends that.")
      : first
          ? absl::StrCat(" Commands go there where ", named_here, " isn't set.")
          : absl::StrCat(" Use it with --context ", options.context,
                         ", or write current_context: ", options.context, " into ", config, "."),
      " The certificate renews itself while you use it at least every ",
      FormatDuration(identity.validity.life_s() * kSecond), ".\n"));
  return kExitOk;
}

int Login(Session& session, const LoginOptions& options) {
  if (!IsLabel(options.context)) {
    return session.Fail(absl::InvalidArgumentError("--as: wants at most 63 of [A-Za-z0-9._-]"));
  }
  if (options.ByProvider() == !options.line.token.empty()) {
    return session.Fail(absl::InvalidArgumentError(
        "log in by an invitation (--token), or by an identity provider (--oidc, --device, "
        "--id-token-file): one of both"));
  }
  // Before anything is spent: a renewal of the login that this replaces could be saved over it.
  const absl::StatusOr<std::unique_ptr<LoginLock>> lock = LoginLock::Wait(
      LoginPathOf(ClientConfigPath(ProcessEnvironment), options.context), kLoginLockLimitNs);
  if (!lock.ok()) return session.Fail(lock.status());
  const absl::StatusOr<Identity> identity =
      options.ByProvider() ? LogInByProvider(session, options) : Join(options.line, "", nullptr);
  if (!identity.ok()) {
    absl::Status status = identity.status();
    status.SetPayload(kDetailsUrl, absl::Cord());  // no server of this machine is meant
    return session.Fail(status);
  }
  if (identity->holder.kind != Holder::kUser) {
    return session.Fail(absl::InvalidArgumentError(
        "the token is a host's: muster-agent join takes it, on that host"));
  }
  return Keep(session, options, *identity);
}

}  // namespace

void AddLogin(CLI::App& root, Session& session) {
  auto options = std::make_shared<LoginOptions>();
  CLI::App* login = root.add_subcommand(
      "login",
      "Become known to a scheduler on another machine, by an invitation or an identity provider");
  login->add_option("address", options->line.address, "HOST:PORT of its join door")->required();
  login->add_option("--token", options->line.token, "As muster user invite printed it");
  login->add_option("--ca", options->line.fingerprint, "Fingerprint of its authority, sha256:…")
      ->required();
  login->add_option("--as", options->context, "Name of the context; default: default");
  options->by_provider =
      login
          ->add_option("--oidc", options->issuer,
                       "By an identity provider, in a browser; which, where there are several")
          ->expected(0, 1);
  login->add_flag("--device", options->device,
                  "The same without a browser here: a code is entered on another machine");
  login->add_option("--id-token-file", options->id_token_file,
                    "By an ID token that a program has already; - is the standard input");
  login->add_option("--provider-ca", options->provider_ca,
                    "File of the authorities that the provider's certificate is checked by; "
                    "default: the machine's");
  login
      ->add_option("--redirect-port", options->redirect_port,
                   "Of 127.0.0.1, where the browser comes back to; default: any that is free")
      ->check(CLI::Range(1, 65535));
  login->callback([&session, options] {
    session.command = [&session, options] { return Login(session, *options); };
  });
}

}  // namespace muster
