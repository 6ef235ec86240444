#include "scheduler/api/join_service.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scheduler/access/roles.h"
#include "scheduler/api/issue.h"
#include "scheduler/api/services.h"
#include "scheduler/trust/providers.h"

namespace muster {
namespace {

// What the audit says of a login by a provider: whom it is about, and why it was refused.
std::string DetailOf(const Vouched& vouched, const std::string& why) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(vouched.name), "\" by ", vouched.issuer,
                      " subject \"", absl::Utf8SafeCEscape(vouched.subject), "\"",
                      why.empty() ? "" : ": ", why);
}

}  // namespace

grpc::Status NoNetwork() {
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                      "this musterd serves no network: its musterd.yaml has no tls:");
}

void Issue(const ApiContext& context, const Caller& caller, pb::CertificateResponse* response,
           IssueOperation issue, Engine::Done done, std::shared_ptr<const std::string> detail) {
  const auto note = [caller, detail](absl::string_view what) {
    caller.Note(detail == nullptr ? std::string(what) : absl::StrCat(*detail, ": ", what));
  };
  caller.Change(
      [&context, response, issue = std::move(issue),
       note](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const int64_t now_ns = context.clock->WallNs();
        absl::StatusOr<Office::Issued> issued = issue(state, now_ns);
        if (!issued.ok()) {
          note(issued.status().message());
          return issued.status();
        }
        note(issued->event.certificate_issued().certificate().uri());
        response->set_certificate(issued->certificate);
        response->set_authorities(TrustedPem(state.trust()));
        for (const std::string& address : context.addresses) response->add_addresses(address);
        response->set_join_address(context.join_address);
        response->set_now_ns(now_ns);
        issued->before.push_back(std::move(issued->event));
        return std::move(issued->before);
      },
      std::move(done));
}

JoinServiceImpl::JoinServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("JoinService/Join", &JoinServiceImpl::Join);
  Unary("JoinService/ListProviders", &JoinServiceImpl::ListProviders);
  Unary("JoinService/LogIn", &JoinServiceImpl::LogIn);
  Unary("JoinService/RenewExpired", &JoinServiceImpl::RenewExpired);
  MUSTER_CHECK(served().size() == kMethods);
}

grpc::ServerUnaryReactor* JoinServiceImpl::Join(const Caller& caller,
                                                grpc::CallbackServerContext* call,
                                                const pb::JoinRequest* request,
                                                pb::CertificateResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  Issue(
      *context_, caller, response,
      [this, request](const State& state, int64_t now_ns) {
        return context_->office->Join(state.trust(), request->token(), request->request(), now_ns);
      },
      [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* JoinServiceImpl::ListProviders(const Caller&,
                                                         grpc::CallbackServerContext* call,
                                                         const pb::ListProvidersRequest*,
                                                         pb::ListProvidersResponse* response) {
  if (context_->providers == nullptr) return Reply(call, grpc::Status::OK);
  for (const IssuerRules& rules : context_->providers->rules()) {
    pb::ListProvidersResponse::Provider* provider = response->add_providers();
    provider->set_issuer(rules.issuer);
    provider->set_client_id(rules.client_id);
    for (const std::string& scope : rules.scopes) provider->add_scopes(scope);
  }
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* JoinServiceImpl::LogIn(const Caller& caller,
                                                 grpc::CallbackServerContext* call,
                                                 const pb::LogInRequest* request,
                                                 pb::CertificateResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  if (context_->providers == nullptr) {
    return Reply(call, grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                    "nobody logs in by an identity provider here: its musterd.yaml "
                                    "has no oidc:. Log in by an invitation: muster user invite"));
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // What is refused goes to the engine, too: there it comes into the audit.
  const auto log_in = [this, caller, request, response,
                       reactor](const absl::StatusOr<Vouched>& vouched) {
    auto detail = std::make_shared<std::string>(vouched.ok() ? DetailOf(*vouched, "") : "");
    Issue(
        *context_, caller, response,
        [this, request, vouched, detail](const State& state,
                                         int64_t now_ns) -> absl::StatusOr<Office::Issued> {
          if (!vouched.ok()) return vouched.status();
          std::string why;
          Vouched asking = *vouched;
          asking.has_roles = HasRolesByName(state, asking.name);
          absl::StatusOr<Office::Issued> issued =
              context_->office->LogIn(state.trust(), asking, request->request(), now_ns, &why);
          *detail = DetailOf(*vouched, why);
          return issued;
        },
        [this, reactor](const absl::Status& status) {
          context_->providers->Count(status);
          reactor->Finish(RefusalOf(status));
        },
        vouched.ok() ? detail : nullptr);
  };
  context_->providers->Check(request->id_token(), request->request(), log_in);
  return reactor;
}

grpc::ServerUnaryReactor* JoinServiceImpl::RenewExpired(const Caller& caller,
                                                        grpc::CallbackServerContext* call,
                                                        const pb::RenewExpiredRequest* request,
                                                        pb::CertificateResponse* response) {
  if (context_->office == nullptr) return Reply(call, NoNetwork());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  Issue(
      *context_, caller, response,
      [this, request](const State& state, int64_t now_ns) {
        return context_->office->RenewExpired(state.trust(), request->certificate(),
                                              request->request(), now_ns);
      },
      [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

}  // namespace muster
