#include "scheduler/api/trust_service.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "scheduler/api/issue.h"
#include "scheduler/api/services.h"

namespace muster {
namespace {

using Events = absl::StatusOr<std::vector<pb::Event>>;

// Of tokens with scopes.
constexpr int kMostScopes = 16, kMostTokens = 32;
constexpr int64_t kScopedTokenNs = 30 * kDay;

// The holder that a token is asked for. INVALID_ARGUMENT, NOT_FOUND: it can't join.
absl::StatusOr<Holder> HolderOf(const State& state, const std::string& host,
                                const std::string& user) {
  if (host.empty() == user.empty()) return absl::InvalidArgumentError("name a host, or a user");
  if (host.empty()) {
    if (!IsUserName(user)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", user,
                       "\": a user's name is 1 to 32 of a-z, 0-9, '_', '-' and '.', not digits "
                       "alone"));
    }
    return Holder{Holder::kUser, state.trust().trust_id, "", user};
  }
  const std::vector<std::string> parts = absl::StrSplit(host, '/');
  if (parts.size() != 2 || !IsLabel(parts[0]) || !IsLabel(parts[1])) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", host, "\" is no host; write CLUSTER/NAME, such as lab/h07"));
  }
  return Holder{Holder::kHost, state.trust().trust_id, parts[0], parts[1]};
}

// Whose jobs alone run in the cluster, as the clusters file says; empty: everybody's.
std::string OnlyUserOf(const State& state, const std::string& cluster) {
  const int32_t c = state.FindCluster(cluster);
  return c < 0 ? "" : state.clusters()[c].spec.only_user();
}

absl::Status CheckHostIsExpected(const State& state, const Holder& holder) {
  for (const pb::ClusterSpec& cluster : state.cluster_file().clusters()) {
    if (cluster.name() != holder.cluster) continue;
    const bool listed =
        std::any_of(cluster.hosts().begin(), cluster.hosts().end(),
                    [&](const pb::HostSpec& host) { return host.name() == holder.name; });
    if (listed || cluster.open()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("cluster ", holder.cluster, " has no host ",
                                            holder.name,
                                            ": add it to clusters.yaml, or set open: true"));
  }
  return absl::NotFoundError(absl::StrCat("there is no cluster ", holder.cluster));
}

pb::AuthorityChanged::Step StepOf(pb::RotateStep step) {
  switch (step) {
    case pb::ROTATE_STEP_PREPARE:
      return pb::AuthorityChanged::PREPARED;
    case pb::ROTATE_STEP_SIGN:
      return pb::AuthorityChanged::SIGNS;
    case pb::ROTATE_STEP_DROP:
      return pb::AuthorityChanged::DROPPED;
    default:
      return pb::AuthorityChanged::STEP_UNSPECIFIED;
  }
}

std::string NameOf(const Holder& holder) {
  return holder.kind == Holder::kHost ? absl::StrCat(holder.cluster, "/", holder.name)
                                      : holder.name;
}

// What the answer says of a token that is made.
absl::Status Tell(const State& state, const Token& token, const pb::JoinToken& row,
                  pb::NewTokenResponse* response) {
  response->set_token(token.Text());
  response->set_id(token.id);
  response->set_expires_ns(row.expires_ns());
  const auto signer = state.trust().authorities.find(state.trust().signer);
  if (signer == state.trust().authorities.end())
    return absl::FailedPreconditionError("there is no authority yet");
  const absl::StatusOr<Certificate> root = ReadCertificate(signer->second.certificate());
  if (!root.ok()) return root.status();
  response->set_fingerprint(root->fingerprint);
  return absl::OkStatus();
}

Events TokenEvents(const State& state, const pb::NewTokenRequest& request, const Token& token,
                   const std::string& by, int64_t now_ns, pb::NewTokenResponse* response) {
  absl::StatusOr<Holder> holder = HolderOf(state, request.host(), request.user());
  if (!holder.ok()) return holder.status();
  const bool host = holder->kind == Holder::kHost;
  if (host) {
    holder->only_user = OnlyUserOf(state, holder->cluster);
    response->set_only_user(holder->only_user);
    if (absl::Status status = CheckHostIsExpected(state, *holder); !status.ok()) return status;
    if (request.reusable() || request.groups_size() > 0)
      return absl::InvalidArgumentError("only a user's token is reusable or has groups");
  }
  if (request.ttl_ns() < 0 || request.ttl_ns() > (host ? kTokenNs : kTokenMostNs))
    return absl::InvalidArgumentError(host ? "ttl: a host's token lasts an hour at most"
                                           : "ttl: must be at most 90d");
  std::vector<pb::Event> events;
  if (!host) {
    pb::NetworkUser* user = events.emplace_back().mutable_network_user()->mutable_user();
    user->set_name(holder->name);
    // Whoever has the name by an identity provider may go on to come by that, too.
    if (const auto row = state.trust().users.find(holder->name); row != state.trust().users.end()) {
      user->set_issuer(row->second.issuer());
      user->set_subject(row->second.subject());
      if (!row->second.revoked()) user->set_log_in_again_ns(row->second.log_in_again_ns());
    }
    std::set<std::string> groups(request.groups().begin(), request.groups().end());
    for (const std::string& group : groups) {
      if (!IsUserName(group)) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", group, "\": a group's name is written like a user's"));
      }
      user->add_groups(group);
    }
  }
  pb::JoinToken* row = events.emplace_back().mutable_join_token()->mutable_token();
  row->set_id(token.id);
  row->set_secret_hash(SecretHash(token));
  row->set_uri(UriOf(*holder));
  row->set_expires_ns(now_ns + (request.ttl_ns() == 0 ? kTokenNs : request.ttl_ns()));
  row->set_reusable(request.reusable());
  row->set_by(by);
  if (absl::Status status = Tell(state, token, *row, response); !status.ok()) return status;
  return events;
}

// A token with scopes, of whoever calls.
Events ScopedTokenEvents(const State& state, const pb::CreateTokenRequest& request,
                         const Principal& who, const Token& token, int64_t now_ns,
                         pb::NewTokenResponse* response) {
  const Trust& trust = state.trust();
  if (const auto user = trust.users.find(who.user);
      user == trust.users.end() || user->second.revoked()) {
    return absl::FailedPreconditionError(
        absl::StrCat("you are no user of the network, where tokens are for. Who administers the "
                     "root invites you: muster user invite ",
                     who.user));
  }
  if (request.scopes_size() < 1 || request.scopes_size() > kMostScopes)
    return absl::InvalidArgumentError("scopes: 1 to 16, such as submit:research/nlp");
  for (const pb::Scope& scope : request.scopes()) {
    if (absl::Status status = CheckScope(state, who, scope); !status.ok()) return status;
  }
  if (request.ttl_ns() < 0 || request.ttl_ns() > kTokenMostNs)
    return absl::InvalidArgumentError("ttl: must be at most 90d");
  const std::string own = UriOf(Holder{Holder::kUser, trust.trust_id, "", who.user});
  const auto has = std::count_if(trust.tokens.begin(), trust.tokens.end(), [&](const auto& row) {
    return row.second.scopes_size() > 0 && NamesHolder(row.second.uri(), own);
  });
  if (has >= kMostTokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "you have ", has, " tokens, which is all there may be. Revoke one: muster token list"));
  }
  std::vector<pb::Event> events(1);
  pb::JoinToken* row = events[0].mutable_join_token()->mutable_token();
  row->set_id(token.id);
  row->set_secret_hash(SecretHash(token));
  row->set_uri(UriOf(Holder{Holder::kUser, trust.trust_id, "", who.user, token.id}));
  row->set_expires_ns(now_ns + (request.ttl_ns() == 0 ? kScopedTokenNs : request.ttl_ns()));
  row->set_reusable(true);
  row->set_by(who.user);
  *row->mutable_scopes() = request.scopes();
  if (absl::Status status = Tell(state, token, *row, response); !status.ok()) return status;
  return events;
}

pb::Holding::Token Told(const pb::JoinToken& token) {
  pb::Holding::Token told;
  told.set_id(token.id());
  told.set_expires_ns(token.expires_ns());
  told.set_spent(!token.key_hash().empty());
  told.set_reusable(token.reusable());
  told.set_by(token.by());
  *told.mutable_scopes() = token.scopes();
  return told;
}

// It has scopes, and is the caller's.
bool IsOwn(const pb::JoinToken& token, const Caller& caller) {
  const std::optional<Holder> holder = ParseHolder(token.uri());
  return token.scopes_size() > 0 && holder.has_value() && holder->kind == Holder::kUser &&
         holder->name == caller.user();
}

// The host or user that a certificate or token is for, by name; with what they have.
void AddHolders(const Trust& trust, bool users, int64_t now_ns,
                std::map<std::string, pb::Holding>* rows) {
  const auto row = [&](const std::string& uri) -> pb::Holding* {
    const std::optional<Holder> holder = ParseHolder(uri);
    if (!holder.has_value() || users != (holder->kind == Holder::kUser)) return nullptr;
    pb::Holding* held = &(*rows)[NameOf(*holder)];
    held->set_name(NameOf(*holder));
    return held;
  };
  for (const auto& [serial, certificate] : trust.certificates) {
    pb::Holding* held = row(certificate.uri());
    if (held == nullptr) continue;
    if (certificate.revoked_ns() != 0) {
      held->set_revoked(held->revoked() + 1);
    } else if (certificate.end_s() * kSecond > now_ns) {
      held->set_certificates(held->certificates() + 1);
      held->set_certificate_end_s(std::max(held->certificate_end_s(), certificate.end_s()));
    }
  }
  for (const auto& [id, token] : trust.tokens) {
    pb::Holding* held = row(token.uri());
    if (held == nullptr) continue;
    *held->add_tokens() = Told(token);
  }
  if (!users) return;
  for (const auto& [name, user] : trust.users) {
    pb::Holding& held = (*rows)[name];
    held.set_name(name);
    for (const std::string& group : user.groups()) held.add_groups(group);
  }
}

Events RevokeEvents(const State& state, const pb::RevokeHolderRequest& request,
                    const std::string& by, pb::RevokeHolderResponse* response) {
  const Trust& trust = state.trust();
  std::vector<pb::Event> events;
  if (!request.token().empty()) {
    if (!request.host().empty() || !request.user().empty())
      return absl::InvalidArgumentError("name a host, a user or a token");
    if (trust.tokens.count(request.token()) == 0)
      return absl::NotFoundError(absl::StrCat("there is no token ", request.token()));
    pb::JoinTokenChanged* changed = events.emplace_back().mutable_join_token();
    changed->mutable_token()->set_id(request.token());
    changed->set_revoked(true);
    response->set_tokens(1);
    return events;
  }
  const absl::StatusOr<Holder> holder = HolderOf(state, request.host(), request.user());
  if (!holder.ok()) return holder.status();
  const std::string uri = UriOf(*holder);
  for (const auto& [serial, certificate] : trust.certificates) {
    if (NamesHolder(certificate.uri(), uri) && certificate.revoked_ns() == 0)
      response->set_certificates(response->certificates() + 1);
  }
  for (const auto& [id, token] : trust.tokens)
    response->set_tokens(response->tokens() + (NamesHolder(token.uri(), uri) ? 1 : 0));
  const auto row = trust.users.find(holder->name);
  const bool user = holder->kind == Holder::kUser && row != trust.users.end();
  // A host may hold a certificate that has ended, is not known any more, and could be renewed.
  const bool host = holder->kind == Holder::kHost && !trust.trust_id.empty() &&
                    state.FindCluster(holder->cluster) >= 0;
  if (response->certificates() == 0 && response->tokens() == 0 && !user && !host) {
    return absl::NotFoundError(
        absl::StrCat(NameOf(*holder), " has no certificate and no token that could be revoked"));
  }
  pb::CertificatesRevoked* revoked = events.emplace_back().mutable_certificates_revoked();
  revoked->set_uri(uri);
  revoked->set_by(by);
  if (user) {
    // Kept: an identity provider would vouch for somebody of that name at once, and roles, jobs and
    // secrets go by names.
    pb::NetworkUserChanged* changed = events.emplace_back().mutable_network_user();
    *changed->mutable_user() = row->second;
    changed->mutable_user()->set_revoked(true);
  }
  return events;
}

}  // namespace

TrustServiceImpl::TrustServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("TrustService/Renew", &TrustServiceImpl::Renew);
  Unary("TrustService/GetNews", &TrustServiceImpl::GetNews);
  Unary("TrustService/GetAuthority", &TrustServiceImpl::GetAuthority);
  Unary("TrustService/Rotate", &TrustServiceImpl::Rotate);
  Unary("TrustService/NewToken", &TrustServiceImpl::NewToken);
  Unary("TrustService/ListHolders", &TrustServiceImpl::ListHolders);
  Unary("TrustService/CreateToken", &TrustServiceImpl::CreateToken);
  Unary("TrustService/ListTokens", &TrustServiceImpl::ListTokens);
  Unary("TrustService/RevokeToken", &TrustServiceImpl::RevokeToken);
  Unary("TrustService/RevokeHolder", &TrustServiceImpl::RevokeHolder);
}

grpc::ServerUnaryReactor* TrustServiceImpl::Renew(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::RenewRequest* request,
                                                  pb::CertificateResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  Issue(
      *context_, caller, response,
      [this, caller, request](const State& state, int64_t now_ns) {
        const Trust& trust = state.trust();
        const Principal& who = caller.who();
        const bool host = !who.host.empty();
        return context_->office->Renew(
            trust,
            Holder{host ? Holder::kHost : Holder::kUser, trust.trust_id, who.cluster,
                   host ? who.host : who.user, who.token, who.only_user},
            request->request(), now_ns);
      },
      [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* TrustServiceImpl::GetNews(const Caller& caller,
                                                    grpc::CallbackServerContext* call,
                                                    const pb::GetNewsRequest*,
                                                    pb::GetNewsResponse* response) {
  response->set_renew(Office::Outdated(caller.view()->state.trust(), caller.who().serial));
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* TrustServiceImpl::GetAuthority(const Caller& caller,
                                                         grpc::CallbackServerContext* call,
                                                         const pb::GetAuthorityRequest*,
                                                         pb::GetAuthorityResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  const State& state = caller.view()->state;
  response->set_trust_id(state.trust().trust_id);
  for (const auto& [version, authority] : state.trust().authorities) {
    pb::GetAuthorityResponse::Entry* entry = response->add_authorities();
    entry->set_version(version);
    entry->set_signs(version == state.trust().signer);
    entry->set_certificate(authority.certificate());
    if (const absl::StatusOr<Certificate> read = ReadCertificate(authority.certificate());
        read.ok()) {
      entry->set_fingerprint(read->fingerprint);
      entry->set_end_s(read->validity.end_s);
    }
  }
  // Names of hosts and users are for who administers them.
  if (Sight(state, caller.who()).RoleAt(0) >= pb::ROLE_ADMIN) {
    for (std::string& name : Office::Behind(state, context_->clock->WallNs(), context_->in_use))
      response->add_behind(std::move(name));
  }
  for (const std::string& address : context_->addresses) response->add_addresses(address);
  response->set_join_address(context_->join_address);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* TrustServiceImpl::Rotate(const Caller& caller,
                                                   grpc::CallbackServerContext* call,
                                                   const pb::RotateRequest* request,
                                                   pb::RotateResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [this, caller, request, response](const State& state) -> Events {
        const int64_t now_ns = context_->clock->WallNs();
        absl::StatusOr<pb::Event> event = context_->office->Turn(
            state, StepOf(request->step()), request->force(), now_ns, context_->in_use);
        if (!event.ok()) return event.status();
        if (request->step() != pb::ROTATE_STEP_PREPARE) {
          for (std::string& name : Office::Behind(state, now_ns, context_->in_use))
            response->add_left_behind(std::move(name));
        }
        caller.Note(absl::StrJoin(response->left_behind(), ", "));
        return std::vector<pb::Event>{*std::move(event)};
      },
      [caller, reactor, request](absl::Status status) {
        if (status.ok()) {
          LogWarn("rotation of the authority",
                  {{"step", pb::RotateStep_Name(request->step())}, {"by", caller.user()}});
        }
        reactor->Finish(ToGrpc(status));
      });
  return reactor;
}

grpc::ServerUnaryReactor* TrustServiceImpl::NewToken(const Caller& caller,
                                                     grpc::CallbackServerContext* call,
                                                     const pb::NewTokenRequest* request,
                                                     pb::NewTokenResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  const std::string own = context_->guard->users()->Of(geteuid())->user;
  if (context_->single_user && !request->user().empty() && request->user() != own) {
    return Reply(call, grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                    absl::StrCat("single_user: everything runs as ", own,
                                                 ", so that nobody else may be invited")));
  }
  if (!context_->single_user && request->user() == "root") {
    return Reply(call, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                    "root comes by the Unix socket, and by no other way"));
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [this, caller, request, response](const State& state) -> Events {
        Events events = TokenEvents(state, *request, muster::NewToken(), caller.user(),
                                    context_->clock->WallNs(), response);
        if (events.ok()) {
          response->set_join_address(context_->join_address);
          response->set_host(request->host());
          response->set_user(request->user());
          caller.Note(events->back().join_token().token().uri());
        }
        return events;
      },
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* TrustServiceImpl::CreateToken(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::CreateTokenRequest* request,
                                                        pb::NewTokenResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [this, caller, request, response](const State& state) -> Events {
        Events events = ScopedTokenEvents(state, *request, caller.who(), muster::NewToken(),
                                          context_->clock->WallNs(), response);
        if (events.ok()) {
          response->set_join_address(context_->join_address);
          caller.Note(absl::StrCat(
              response->id(), " ",
              absl::StrJoin(request->scopes(), ",", [](std::string* text, const pb::Scope& scope) {
                absl::StrAppend(text, ScopeText(scope));
              })));
        }
        return events;
      },
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* TrustServiceImpl::ListTokens(const Caller& caller,
                                                       grpc::CallbackServerContext* call,
                                                       const pb::ListTokensRequest*,
                                                       pb::ListTokensResponse* response) {
  for (const auto& [id, token] : caller.view()->state.trust().tokens) {
    if (IsOwn(token, caller)) *response->add_tokens() = Told(token);
  }
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* TrustServiceImpl::RevokeToken(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::RevokeTokenRequest* request,
                                                        pb::RevokeTokenResponse*) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [caller, request](const State& state) -> Events {
        const auto token = state.trust().tokens.find(request->id());
        if (token == state.trust().tokens.end() || !IsOwn(token->second, caller)) {
          return absl::NotFoundError(
              absl::StrCat("you have no token ", request->id(), ". See: muster token list"));
        }
        caller.Note(request->id());
        std::vector<pb::Event> events(1);
        events[0].mutable_join_token()->mutable_token()->set_id(request->id());
        events[0].mutable_join_token()->set_revoked(true);
        return events;
      },
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* TrustServiceImpl::ListHolders(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::ListHoldersRequest* request,
                                                        pb::ListHoldersResponse* response) {
  std::map<std::string, pb::Holding> rows;
  AddHolders(caller.view()->state.trust(), request->users(), context_->clock->WallNs(), &rows);
  for (auto& [name, row] : rows) *response->add_holders() = std::move(row);
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* TrustServiceImpl::RevokeHolder(const Caller& caller,
                                                         grpc::CallbackServerContext* call,
                                                         const pb::RevokeHolderRequest* request,
                                                         pb::RevokeHolderResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [caller, request, response](const State& state) -> Events {
        return RevokeEvents(state, *request, caller.user(), response);
      },
      [caller, reactor, request](absl::Status status) {
        if (status.ok()) {
          LogWarn("revoked", {{"host", request->host()},
                              {"user", request->user()},
                              {"token", request->token()},
                              {"by", caller.user()}});
        }
        reactor->Finish(ToGrpc(status));
      });
  return reactor;
}

}  // namespace muster
