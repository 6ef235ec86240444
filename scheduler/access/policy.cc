#include "scheduler/access/policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "muster/v1/access_service.pb.h"
#include "muster/v1/agent_service.pb.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/pack_service.pb.h"
#include "muster/v1/queue_service.pb.h"
#include "muster/v1/secret_service.pb.h"
#include "muster/v1/trust_service.pb.h"
#include "scheduler/access/roles.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// Files with services. policy_test compares them with all that there are.
std::vector<const FileDescriptor*> ServiceFiles() {
  return {pb::SubmitRequest::descriptor()->file(),   pb::ApplyQueuesRequest::descriptor()->file(),
          pb::DrainRequest::descriptor()->file(),    pb::GrantRequest::descriptor()->file(),
          pb::ReadPackRequest::descriptor()->file(), pb::JoinRequest::descriptor()->file(),
          pb::PutPackRequest::descriptor()->file(),  pb::SetSecretRequest::descriptor()->file()};
}

const FieldDescriptor* FieldAt(const Descriptor* in, const std::string& path) {
  const FieldDescriptor* field = nullptr;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (const std::string& name : names) {
    if (in == nullptr) return nullptr;
    field = in->FindFieldByName(name);
    if (field == nullptr) return nullptr;
    in = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? field->message_type() : nullptr;
  }
  return field;
}

bool Fits(const pb::Policy& policy, const FieldDescriptor& field) {
  if (policy.object() == pb::OBJECT_TREE)
    return field.message_type() != nullptr &&
           field.message_type()->full_name() == pb::QueueTree::descriptor()->full_name();
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

std::vector<MethodPolicy> ReadPolicies() {
  std::vector<MethodPolicy> methods;
  for (const FileDescriptor* file : ServiceFiles()) {
    MUSTER_CHECK(file != nullptr);
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        MethodPolicy row;
        row.method = file->service(s)->method(m);
        row.name = absl::StrCat(file->service(s)->name(), "/", row.method->name());
        row.path = absl::StrCat("/", file->service(s)->full_name(), "/", row.method->name());
        row.policy = row.method->options().GetExtension(pb::policy);
        const std::string wrong = WhyNoPolicy(row.policy, *row.method->input_type());
        MUSTER_CHECK_MSG(wrong.empty(), absl::StrCat(row.name, ": ", wrong).c_str());
        methods.push_back(std::move(row));
      }
    }
  }
  return methods;
}

std::vector<pb::Route> ReadRoutes() {
  std::vector<pb::Route> routes;
  const auto& options = pb::Binding::descriptor()->file()->options();
  for (int i = 0; i < options.ExtensionSize(pb::route); ++i) {
    const pb::Route& route = options.GetExtension(pb::route, i);
    MUSTER_CHECK(!route.path().empty() && route.policy().right() != pb::RIGHT_UNSPECIFIED &&
                 route.policy().rate() != pb::RATE_UNSPECIFIED);
    routes.push_back(route);
  }
  return routes;
}

const char* ObjectText(const pb::Policy& policy) {
  switch (policy.object()) {
    case pb::OBJECT_ROOT:
      return "the root";
    case pb::OBJECT_QUEUE:
      return "the queue";
    case pb::OBJECT_JOB:
      return "the job's queue";
    case pb::OBJECT_JOBS_QUEUE:
      return "the queue that the job names";
    case pb::OBJECT_TREE:
      return "the queue above each that changes";
    default:
      return MinRole(policy.right()) == pb::ROLE_UNSPECIFIED ? "" : "any queue";
  }
}

std::string RightText(const pb::Policy& policy) {
  const char* const whole = policy.whole() ? ", and no token's login" : "";
  switch (policy.right()) {
    case pb::RIGHT_ANYBODY:
      return "nothing: whoever reaches the address";
    case pb::RIGHT_ASK:
      return absl::StrCat("to be a user who is known", whole);
    case pb::RIGHT_AGENT:
      return "to be root, the user who runs musterd, or a host with its certificate";
    case pb::RIGHT_CERTIFICATE:
      return "to hold a certificate; for its holder alone";
    default:
      break;
  }
  std::string text = absl::StrCat(RoleName(MinRole(policy.right())), " at ", ObjectText(policy));
  if (OwnerHas(policy.right()) && policy.object() == pb::OBJECT_JOB)
    absl::StrAppend(&text, ", or to own the job");
  for (const pb::Policy::Wider& wider : policy.wider())
    absl::StrAppend(&text, "; with `", wider.if_set(), "` also ", RoleName(MinRole(wider.right())),
                    " at the root");
  return text + whole;
}

const char* RateText(pb::Rate rate) {
  switch (rate) {
    case pb::RATE_READ:
      return "50";
    case pb::RATE_SUBMIT:
      return "200";
    case pb::RATE_CHANGE:
      return "20";
    case pb::RATE_JOIN:
      return "1";
    default:
      return "";
  }
}

}  // namespace

std::string WhyNoPolicy(const pb::Policy& policy, const Descriptor& request) {
  if (policy.right() == pb::RIGHT_UNSPECIFIED) return "it has no policy";
  if (policy.rate() == pb::RATE_UNSPECIFIED) return "its policy says no rate";
  const bool names = policy.object() != pb::OBJECT_NONE && policy.object() != pb::OBJECT_ROOT;
  if (names != !policy.field().empty()) return "its policy's field doesn't go with its object";
  const bool takes_role = MinRole(policy.right()) != pb::ROLE_UNSPECIFIED;
  if (!takes_role && policy.object() != pb::OBJECT_NONE)
    return "its policy names an object, and asks nothing there";
  if (names) {
    const FieldDescriptor* field = FieldAt(&request, policy.field());
    if (field == nullptr || !Fits(policy, *field))
      return absl::StrCat("its request has no such ", policy.field());
  }
  for (const pb::Policy::Wider& wider : policy.wider()) {
    if (FieldAt(&request, wider.if_set()) == nullptr)
      return absl::StrCat("its request has no ", wider.if_set());
    if (MinRole(wider.right()) == pb::ROLE_UNSPECIFIED) return "a wider right takes no role";
  }
  return "";
}

const std::vector<MethodPolicy>& MethodPolicies() {
  static const auto& policies = *new std::vector<MethodPolicy>(ReadPolicies());
  return policies;
}

const MethodPolicy& PolicyOf(std::string_view name) {
  const std::vector<MethodPolicy>& all = MethodPolicies();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const MethodPolicy& row) { return row.name == name; });
  MUSTER_CHECK_MSG(found != all.end(), std::string(name).c_str());
  return *found;
}

const std::vector<pb::Route>& Routes() {
  static const auto& routes = *new std::vector<pb::Route>(ReadRoutes());
  return routes;
}

const pb::Route& RouteOf(std::string_view path) {
  const std::vector<pb::Route>& all = Routes();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const pb::Route& row) { return row.path() == path; });
  MUSTER_CHECK_MSG(found != all.end(), std::string(path).c_str());
  return *found;
}

std::string PolicyTable() {
  std::string text = "| call | takes | audited | calls a second |\n|---|---|---|---|\n";
  const auto row = [&](const std::string& name, const pb::Policy& policy) {
    absl::StrAppend(&text, "| `", name, "` | ", RightText(policy), " | ",
                    policy.audited() ? "yes" : "", " | ", RateText(policy.rate()), " |\n");
  };
  for (const MethodPolicy& method : MethodPolicies()) row(method.name, method.policy);
  for (const pb::Route& route : Routes())
    row(absl::StrCat("GET ", route.path(), "` at `", route.door()), route.policy());
  return text;
}

}  // namespace muster
