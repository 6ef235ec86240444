#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "scheduler/access/owners.h"
#include "scheduler/api/errors.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/services.h"

namespace muster {
namespace {

constexpr int kAuditRows = 100, kAuditRowsMost = 1000;

std::string NameOf(const pb::Binding& binding) {
  return binding.user().empty() ? absl::StrCat("group ", binding.group()) : binding.user();
}

bool Concerns(const pb::Binding& binding, const Principal& who) {
  if (!binding.user().empty()) return binding.user() == who.user;
  return std::find(who.groups.begin(), who.groups.end(), binding.group()) != who.groups.end();
}

// The lists of a queue as bindings: they give the same.
void AddLists(const QueueNode& node, const Principal& who, bool administers,
              pb::ListAccessResponse* response) {
  const auto add = [&](const std::string& name, pb::Role role, const char* by) {
    pb::Binding binding;
    binding.set_user(name);
    binding.set_role(role);
    binding.set_queue(node.path);
    const bool own = name == "*" || name == who.user ||
                     std::find(who.groups.begin(), who.groups.end(), name) != who.groups.end();
    if (!administers && !own) return;
    pb::ListAccessResponse::Entry* entry = response->add_entries();
    *entry->mutable_binding() = std::move(binding);
    entry->set_by(by);
  };
  for (const std::string& name : node.spec.admin()) add(name, pb::ROLE_ADMIN, "admin");
  for (const std::string& name : node.spec.submit()) add(name, pb::ROLE_SUBMITTER, "submit");
}

}  // namespace

AccessServiceImpl::AccessServiceImpl(const ApiContext* context, const Door* door)
    : GuardedService(context->guard, door), context_(context) {
  Unary("AccessService/List", &AccessServiceImpl::List);
  Unary("AccessService/Grant", &AccessServiceImpl::Grant);
  Unary("AccessService/Revoke", &AccessServiceImpl::Revoke);
  Unary("AccessService/Check", &AccessServiceImpl::Check);
  Unary("AccessService/ListAudit", &AccessServiceImpl::ListAudit);
  Unary("AccessService/VerifyAudit", &AccessServiceImpl::VerifyAudit);
}

grpc::ServerUnaryReactor* AccessServiceImpl::List(const Caller& caller,
                                                  grpc::CallbackServerContext* call,
                                                  const pb::ListAccessRequest*,
                                                  pb::ListAccessResponse* response) {
  const State& state = caller.view()->state;
  const Sight sight(state, caller.who());
  for (size_t n = 0; n < state.queues().nodes.size(); ++n) {
    const QueueNode& node = state.queues().nodes[n];
    const bool administers = sight.RoleAt(static_cast<int32_t>(n)) >= pb::ROLE_ADMIN;
    for (auto it = state.bindings().lower_bound(BindingKey{node.path, false, ""});
         it != state.bindings().end() && it->first.queue == node.path; ++it) {
      pb::Binding binding;
      (it->first.group ? binding.mutable_group() : binding.mutable_user())->assign(it->first.name);
      binding.set_role(it->second);
      binding.set_queue(node.path);
      if (administers || Concerns(binding, caller.who()))
        *response->add_entries()->mutable_binding() = std::move(binding);
    }
    AddLists(node, caller.who(), administers, response);
  }
  return Reply(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* AccessServiceImpl::Change(const Caller& caller,
                                                    grpc::CallbackServerContext* call,
                                                    const pb::Binding& binding, bool revoked,
                                                    std::function<void(pb::Role before)> done) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  caller.Change(
      [caller, &binding, revoked,
       done = std::move(done)](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        if (absl::Status status = CheckBinding(state, caller.who(), binding, revoked); !status.ok())
          return status;
        const BindingKey key{binding.queue(), binding.user().empty(),
                             binding.user().empty() ? binding.group() : binding.user()};
        const auto before = state.bindings().find(key);
        const pb::Role had =
            before == state.bindings().end() ? pb::ROLE_UNSPECIFIED : before->second;
        done(had);
        caller.Note(absl::StrCat(NameOf(binding), ": ", RoleName(had), " -> ",
                                 revoked ? "no role" : RoleName(binding.role())));
        std::vector<pb::Event> events(1);
        pb::BindingChanged* changed = events[0].mutable_binding_changed();
        *changed->mutable_binding() = binding;
        changed->set_revoked(revoked);
        changed->set_by(caller.user());
        return events;
      },
      [caller, reactor, &binding, revoked](absl::Status status) {
        if (status.ok()) {
          LogWarn(revoked ? "access revoked" : "access granted",
                  {{"to", NameOf(binding)},
                   {"role", RoleName(binding.role())},
                   {"queue", QueueText(binding.queue())},
                   {"by", caller.user()}});
        }
        reactor->Finish(ToGrpc(status));
      });
  return reactor;
}

grpc::ServerUnaryReactor* AccessServiceImpl::Grant(const Caller& caller,
                                                   grpc::CallbackServerContext* call,
                                                   const pb::GrantRequest* request,
                                                   pb::GrantResponse* response) {
  return Change(caller, call, request->binding(), false,
                [response](pb::Role before) { response->set_before(before); });
}

grpc::ServerUnaryReactor* AccessServiceImpl::Revoke(const Caller& caller,
                                                    grpc::CallbackServerContext* call,
                                                    const pb::RevokeRequest* request,
                                                    pb::RevokeResponse* response) {
  return Change(caller, call, request->binding(), true,
                [response](pb::Role before) { response->set_before(before); });
}

grpc::ServerUnaryReactor* AccessServiceImpl::Check(const Caller& caller,
                                                   grpc::CallbackServerContext* call,
                                                   const pb::CheckAccessRequest* request,
                                                   pb::CheckAccessResponse* response) {
  const State& state = caller.view()->state;
  const Sight sight(state, caller.who());
  const int32_t node = state.queues().Node(request->queue());
  const bool own = request->user().empty() || request->user() == caller.user();
  if (node < 0 || (!request->queue().empty() && !sight.Knows(request->queue()))) {
    return Reply(call, grpc::Status(grpc::StatusCode::NOT_FOUND,
                                    absl::StrCat("there is no queue \"", request->queue(),
                                                 "\" for you. See: muster queue list")));
  }
  if (!own && sight.RoleAt(node) < pb::ROLE_ADMIN) {
    return Reply(call, grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                                    absl::StrCat("who may do what at ", QueueText(request->queue()),
                                                 " is told to those who administer it; you, ",
                                                 caller.user(), ", may ask about yourself")));
  }
  std::shared_ptr<const Principal> who = std::make_shared<const Principal>(caller.who());
  if (!own) {
    // Of the two that may go by this name: an account here, and who comes over the network.
    who = context_->guard->users()->Named(request->user());
    if (const std::optional<Principal> far = ByNetwork(state, request->user());
        far.has_value() &&
        (who == nullptr || HeldAt(state, *far, node).role > HeldAt(state, *who, node).role))
      who = std::make_shared<const Principal>(*far);
  }
  if (who == nullptr) {
    return Reply(call, grpc::Status(grpc::StatusCode::NOT_FOUND,
                                    absl::StrCat("there is no user \"", request->user(), "\"")));
  }
  const Held held = HeldAt(state, *who, node);
  response->set_user(who->user);
  for (const std::string& group : who->groups) response->add_groups(group);
  response->set_role(held.role);
  response->set_queue(request->queue());
  response->set_why(held.why.empty()
                        ? absl::StrCat("no binding and no list of a queue names ", who->user,
                                       " at ", QueueText(request->queue()), " or above")
                        : held.why);
  return Reply(call, grpc::Status::OK);
}

// The audit is read from disk: not on a thread of gRPC's.
grpc::ServerUnaryReactor* AccessServiceImpl::ListAudit(const Caller&,
                                                       grpc::CallbackServerContext* call,
                                                       const pb::ListAuditRequest* request,
                                                       pb::ListAuditResponse* response) {
  if (request->limit() < 0 || request->limit() > kAuditRowsMost)
    return Reply(call, BadRequest("the request is wrong", {{"limit", "must be 0..1000"}}));
  Audit* const audit = context_->guard->audit();
  if (audit == nullptr) return Reply(call, grpc::Status::OK);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool asked = context_->outlook->Ask([audit, request, response, reactor] {
    const absl::StatusOr<std::vector<pb::AuditRecord>> records =
        audit->Newest(static_cast<size_t>(request->limit() > 0 ? request->limit() : kAuditRows),
                      [&](const pb::AuditRecord& record) {
                        return (request->user().empty() || record.user() == request->user()) &&
                               (!request->denied() || record.outcome() != "OK");
                      });
    if (records.ok()) {
      for (const pb::AuditRecord& record : *records) *response->add_records() = record;
    }
    reactor->Finish(ToGrpc(records.status()));
  });
  if (!asked) reactor->Finish(BusyForNow());
  return reactor;
}

grpc::ServerUnaryReactor* AccessServiceImpl::VerifyAudit(const Caller&,
                                                         grpc::CallbackServerContext* call,
                                                         const pb::VerifyAuditRequest* request,
                                                         pb::VerifyAuditResponse* response) {
  Audit* const audit = context_->guard->audit();
  if (audit == nullptr) return Reply(call, grpc::Status::OK);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool asked = context_->outlook->Ask([audit, request, response, reactor] {
    const absl::StatusOr<AuditHead> head = audit->Verify(request->number(), request->hash());
    if (head.ok()) {
      response->set_first(head->first);
      response->set_last(head->last);
      response->set_hash(head->hash);
    }
    reactor->Finish(ToGrpc(head.status()));
  });
  if (!asked) reactor->Finish(BusyForNow());
  return reactor;
}

}  // namespace muster
