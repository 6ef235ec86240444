#include "scheduler/api/secret_service.h"

#include "absl/strings/str_cat.h"
#include "common/base/secret_use.h"
#include "common/base/units.h"
#include "scheduler/api/services.h"
#include "scheduler/store/secrets.h"

namespace muster {
namespace {

// What a process is given as variables and words. Linux takes a quarter of the stack's limit, so
// 2 MiB where that is 8 MiB; what Muster adds, and pointers to all of it, have the rest.
constexpr int64_t kMaxVariablesBytes = 1536 << 10;

grpc::Status NoStore() {
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "this server keeps no secrets");
}

// `status` is what became of it, which the audit gets with the name, and the caller as the answer.
grpc::ServerUnaryReactor* Recorded(const Caller& caller, grpc::CallbackServerContext* call,
                                   const std::string& name, absl::Status status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Note(name);
  caller.Change(
      [status](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        if (!status.ok()) return status;
        return std::vector<pb::Event>();
      },
      [reactor](absl::Status recorded) { reactor->Finish(ToGrpc(recorded)); });
  return reactor;
}

}  // namespace

SecretServiceImpl::SecretServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("SecretService/Set", &SecretServiceImpl::Set);
  Unary("SecretService/List", &SecretServiceImpl::List);
  Unary("SecretService/Delete", &SecretServiceImpl::Delete);
}

grpc::ServerUnaryReactor* SecretServiceImpl::Set(const Caller& caller,
                                                 grpc::CallbackServerContext* call,
                                                 const pb::SetSecretRequest* request,
                                                 pb::SetSecretResponse*) {
  if (context_->secrets == nullptr) return Reply(call, NoStore());
  if (const std::string why = WhyNoSubmissions(*context_); !why.empty())
    return Reply(call, NotNow(why, "STORE_FULL"));
  return Recorded(caller, call, request->name(),
                  context_->secrets->Set(caller.user(), request->name(), request->value()));
}

grpc::ServerUnaryReactor* SecretServiceImpl::List(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::ListSecretsRequest*,
                                                  pb::ListSecretsResponse* response) {
  if (context_->secrets == nullptr) return Reply(call, grpc::Status::OK);
  for (const SecretStore::Named& named : context_->secrets->List(caller.user())) {
    pb::Secret* secret = response->add_secrets();
    secret->set_name(named.name);
    secret->set_set_ns(named.set_ns);
  }
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* SecretServiceImpl::Delete(const Caller& caller,
                                                    grpc::CallbackServerContext* call,
                                                    const pb::DeleteSecretRequest* request,
                                                    pb::DeleteSecretResponse*) {
  if (context_->secrets == nullptr) return Reply(call, NoStore());
  return Recorded(caller, call, request->name(),
                  context_->secrets->Delete(caller.user(), request->name()));
}

std::vector<FieldProblem> CheckSecrets(const ApiContext& context, const std::string& owner,
                                       const pb::JobSpec& spec) {
  std::vector<FieldProblem> problems;
  int64_t bytes = 0;
  for (int i = 0; i < spec.secrets_size(); ++i) {
    const SecretUse use = ReadSecretUse(spec.secrets(i));
    if (!IsSecretName(use.name)) continue;  // told with the rest of what is wrong with the job
    const int64_t sealed =
        context.secrets == nullptr ? 0 : context.secrets->SealedBytes(owner, use.name);
    bytes += sealed + static_cast<int64_t>(use.variable.size());
    if (sealed > 0) continue;
    const std::string shown = use.name.substr(0, 64);
    problems.push_back({absl::StrCat("secrets[", i, "]"),
                        absl::StrCat("you have no secret ", shown, " here; muster secret set ",
                                     shown, " reads its value from standard input")});
  }
  // With all that a submission may say, and what Muster adds.
  if (const int64_t all = bytes + static_cast<int64_t>(spec.ByteSizeLong());
      all > kMaxVariablesBytes) {
    problems.push_back(
        {"secrets",
         absl::StrCat(
             "their values and the rest of the job are ", FormatSize(all), " and Linux takes ",
             FormatSize(kMaxVariablesBytes),
             " as variables of a process; name fewer, or keep what is large in a file that "
             "only you can read")});
  }
  return problems;
}

}  // namespace muster
