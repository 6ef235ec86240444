#include "scheduler/api/guard.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/spec/members.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/api/find_jobs.h"
#include "scheduler/trust/office.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kToldQueues = 10;
constexpr size_t kObjectBytes = 300;

// The messages that hold the last field of the path, and that field. A message on the way that
// isn't set counts as an empty one; of a repeated one each counts.
std::vector<std::pair<const Message*, const FieldDescriptor*>> Ends(const Message& request,
                                                                    const std::string& path) {
  std::vector<const Message*> at = {&request};
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    std::vector<const Message*> below;
    for (const Message* message : at) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(names[i]);
      const Reflection* reflection = message->GetReflection();
      if (!field->is_repeated()) {
        below.push_back(&reflection->GetMessage(*message, field));
        continue;
      }
      for (int n = 0; n < reflection->FieldSize(*message, field); ++n)
        below.push_back(&reflection->GetRepeatedMessage(*message, field, n));
    }
    at = std::move(below);
  }
  std::vector<std::pair<const Message*, const FieldDescriptor*>> ends;
  for (const Message* message : at)
    ends.emplace_back(message, message->GetDescriptor()->FindFieldByName(names.back()));
  return ends;
}

std::vector<std::string> TextsAt(const Message& request, const std::string& path) {
  std::vector<std::string> texts;
  for (const auto& [message, field] : Ends(request, path))
    texts.push_back(message->GetReflection()->GetString(*message, field));
  return texts;
}

bool IsSet(const Message& request, const std::string& name) {
  const FieldDescriptor* field = request.GetDescriptor()->FindFieldByName(name);
  const Reflection* reflection = request.GetReflection();
  return field->is_repeated() ? reflection->FieldSize(request, field) > 0
                              : reflection->HasField(request, field);
}

// One question of Authorize.
class Question {
 public:
  Question(const State& state, const Principal& who, const MethodPolicy& method)
      : sight_(state, who), who_(who), method_(method) {}

  absl::Status OnQueue(pb::Right right, const std::string& path) {
    const int32_t node = sight_.state().queues().Node(path);
    if (node < 0) {
      // Who sees everything is told by the handler what is wrong with the name.
      return sight_.RoleAt(0) >= MinRole(right) ? absl::OkStatus() : NoQueue(path);
    }
    return OnNode(right, node);
  }
  absl::Status OnJobsQueue(pb::Right right, const std::string& path) {
    if (!path.empty()) return OnQueue(right, path);
    const QueueIndex& queues = sight_.state().queues();
    int32_t only = -1, leaves = 0;
    for (size_t n = 1; n < queues.nodes.size(); ++n) {
      if (!queues.leaf(static_cast<int32_t>(n))) continue;
      only = static_cast<int32_t>(n);
      ++leaves;
    }
    if (leaves == 1) return OnNode(right, only);
    if (sight_.RoleAt(0) >= MinRole(right)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("queue: missing", Yours()));
  }
  absl::Status OnTree(pb::Right right, const pb::QueueTree& tree) {
    if (!sight_.Anywhere(MinRole(right))) return OnNode(right, 0);
    if (const std::optional<std::string> above = AboveHidden(sight_, tree))
      return OnNode(right, sight_.state().queues().Node(*above));
    for (const std::string& parent : ParentsOfChanged(sight_.state(), WithUnseen(sight_, tree))) {
      if (absl::Status status = OnNode(right, sight_.state().queues().Node(parent)); !status.ok())
        return status;
    }
    return absl::OkStatus();
  }
  absl::Status OnJob(pb::Right right, const JobRow* job, const std::string& id) {
    if (job == nullptr || !sight_.Sees(*job)) {
      hidden_ = job != nullptr;
      return absl::NotFoundError(absl::StrCat("there is no job \"", id, "\". See: muster jobs"));
    }
    if (sight_.May(right, *job)) return absl::OkStatus();
    return Denied(right, std::max(0, sight_.state().queues().Find(job->spec->queue())));
  }
  absl::Status Anywhere(pb::Right right) {
    return sight_.Anywhere(MinRole(right)) ? absl::OkStatus() : Denied(right, 0);
  }
  absl::Status OnNode(pb::Right right, int32_t node) {
    if (sight_.RoleAt(node) >= MinRole(right)) return absl::OkStatus();
    const std::string& path = sight_.state().queues().nodes[node].path;
    if (path.empty() || sight_.Knows(path)) return Denied(right, node);
    hidden_ = true;
    return NoQueue(path);
  }
  bool hidden() const { return hidden_; }

 private:
  absl::Status NoQueue(const std::string& path) const {
    return absl::NotFoundError(absl::StrCat("there is no queue \"", path, "\" for you", Yours()));
  }
  std::string Yours() const {
    std::vector<std::string> yours;
    for (const QueueNode& node : sight_.state().queues().nodes) {
      if (!node.path.empty() && node.children.empty() && sight_.Sees(node.path))
        yours.push_back(node.path);
    }
    if (yours.empty()) return "; there is none yet. An admin grants: muster access grant";
    const bool more = yours.size() > kToldQueues;
    if (more) yours.resize(kToldQueues);
    return absl::StrCat("; yours: ", absl::StrJoin(yours, ", "), more ? ", …" : "");
  }
  absl::Status Denied(pb::Right right, int32_t node) const {
    const std::string& path = sight_.state().queues().nodes[node].path;
    const pb::Role role = sight_.RoleAt(node), needed = MinRole(right);
    const std::string where = QueueText(path);
    if (!who_.token.empty() && ScopeAt(sight_.state(), who_, node) < needed) {
      return absl::PermissionDeniedError(absl::StrCat(
          method_.name, " takes ", RoleName(needed), " at ", where, "; your token gives ",
          RoleName(role),
          " there. If you may do it yourself, make another token: muster token create"));
    }
    return absl::PermissionDeniedError(absl::StrCat(
        method_.name, " takes ", RoleName(needed), " at ", where, "; you, ", who_.user, ", have ",
        RoleName(role), " there. Who administers it may change that: muster access grant ",
        who_.user, " ", RoleName(needed), " ", path.empty() ? "/" : path));
  }

  const Sight sight_;
  const Principal& who_;
  const MethodPolicy& method_;
  bool hidden_ = false;
};

absl::Status Ask(
    Question* question, const State& state, const MethodPolicy& method, const Message& request,
    const std::function<absl::StatusOr<std::shared_ptr<const JobRow>>(const std::string& id)>&
        find_job,
    std::shared_ptr<const JobRow>* job) {
  const pb::Policy& policy = method.policy;
  const pb::Right right = policy.right();
  switch (policy.object()) {
    case pb::OBJECT_ROOT:
      return question->OnNode(right, 0);
    case pb::OBJECT_QUEUE:
    case pb::OBJECT_JOBS_QUEUE: {
      const std::vector<std::string> paths = TextsAt(request, policy.field());
      if (paths.empty()) return question->Anywhere(right);  // of no job: it costs all the same
      for (const std::string& path : paths) {
        absl::Status status = policy.object() == pb::OBJECT_QUEUE
                                  ? question->OnQueue(right, path)
                                  : question->OnJobsQueue(right, path);
        if (!status.ok()) return status;
      }
      return absl::OkStatus();
    }
    case pb::OBJECT_TREE: {
      const auto [message, field] = Ends(request, policy.field()).front();
      const Message& tree = message->GetReflection()->GetMessage(*message, field);
      return question->OnTree(right, static_cast<const pb::QueueTree&>(tree));
    }
    case pb::OBJECT_JOB: {
      const std::string id = TextsAt(request, policy.field()).front();
      absl::StatusOr<std::shared_ptr<const JobRow>> found = find_job(id);
      if (!found.ok()) return found.status();
      absl::Status status = question->OnJob(right, found->get(), id);
      if (status.ok() && job != nullptr) *job = *std::move(found);
      return status;
    }
    default:
      return MinRole(right) == pb::ROLE_UNSPECIFIED ? absl::OkStatus() : question->Anywhere(right);
  }
}

std::string ObjectOf(const MethodPolicy& method, const Message& request) {
  const pb::Object object = method.policy.object();
  const std::string text =
      object == pb::OBJECT_QUEUE || object == pb::OBJECT_JOB || object == pb::OBJECT_JOBS_QUEUE
          ? absl::StrJoin(TextsAt(request, method.policy.field()), ", ")
      : object == pb::OBJECT_ROOT ? request.ShortDebugString()
                                  : "";
  return std::string(CutUtf8(text, kObjectBytes));
}

// What certificates and the join door allow, before any role is looked at.
absl::Status AuthorizeDoor(const State& state, const Principal& who, const pb::Policy& policy) {
  const pb::Right right = policy.right();
  if (who.stranger != (right == pb::RIGHT_ANYBODY)) {
    return who.stranger ? absl::UnauthenticatedError("without a certificate you can only join")
                        : absl::PermissionDeniedError("whoever has a certificate joins no more");
  }
  if (who.stranger) return absl::OkStatus();
  if (who.certified()) {
    const Holder holder{who.host.empty() ? Holder::kUser : Holder::kHost, state.trust().trust_id,
                        who.cluster, who.host.empty() ? who.user : who.host, who.token};
    if (const std::string why = WhyNotTrusted(state.trust(), holder, who.serial, who.authority);
        !why.empty())
      return absl::UnauthenticatedError(why);
  }
  if (right == pb::RIGHT_CERTIFICATE && !who.certified())
    return absl::PermissionDeniedError("you came without a certificate: there is none to renew");
  if (right == pb::RIGHT_AGENT && !who.trusted && who.host.empty()) {
    return absl::PermissionDeniedError(
        "agents run as root, as the user who runs musterd, or come with their host's certificate");
  }
  if (!who.token.empty() && policy.whole()) {
    return absl::PermissionDeniedError(
        "a token is for jobs and queues: do this with your own login, not with a token's");
  }
  if (!who.host.empty() && right != pb::RIGHT_AGENT && right != pb::RIGHT_CERTIFICATE)
    return absl::PermissionDeniedError("a host's certificate is for its agent alone");
  return absl::OkStatus();
}

}  // namespace

absl::Status Authorize(
    const State& state, const Principal& who, const MethodPolicy& method, const Message& request,
    const std::function<absl::StatusOr<std::shared_ptr<const JobRow>>(const std::string& id)>&
        find_job,
    std::shared_ptr<const JobRow>* job, bool* hidden) {
  if (!who.known()) {
    return absl::UnauthenticatedError(
        "you are nobody whom this musterd knows. Who runs it adds you: users in musterd.yaml");
  }
  if (absl::Status status = AuthorizeDoor(state, who, method.policy); !status.ok()) return status;
  Question question(state, who, method);
  absl::Status status = Ask(&question, state, method, request, find_job, job);
  for (const pb::Policy::Wider& wider : method.policy.wider()) {
    if (status.ok() && IsSet(request, wider.if_set())) status = question.OnNode(wider.right(), 0);
  }
  if (hidden != nullptr) *hidden = question.hidden();
  return status;
}

namespace {

// As how many calls it counts: an array is many jobs at once, and a long one stays in memory.
int64_t CallsOf(const Message& request) {
  constexpr int32_t kMembersACall = 100;
  constexpr size_t kBytesACall = 16 << 10;
  const auto* submit = google::protobuf::DynamicCastToGenerated<const pb::SubmitRequest>(&request);
  if (submit == nullptr) return 1;
  return 1 + std::clamp(MembersOf(submit->spec()), 0, kMaxMembers) / kMembersACall +
         static_cast<int64_t>(submit->ByteSizeLong() / kBytesACall);
}

}  // namespace

absl::StatusOr<Caller> Guard::Admit(const MethodPolicy& method, uint32_t uid,
                                    const Message& request) {
  return Admit(method, parts_.users->Of(uid), request);
}

absl::StatusOr<Caller> Guard::Admit(const MethodPolicy& method,
                                    std::shared_ptr<const Principal> calling,
                                    const Message& request) {
  Caller caller;
  caller.guard_ = this;
  caller.method_ = &method;
  caller.request_ = &request;
  caller.who_ = std::move(calling);
  caller.view_ = parts_.engine->Snapshot();
  caller.detail_ = std::make_shared<std::string>();
  const Principal& who = *caller.who_;
  if (!who.trusted &&
      !rates_.Take(who.user, method.policy.rate(), parts_.clock->MonotonicNs(), CallsOf(request))) {
    return absl::UnavailableError(absl::StrCat(who.user, " calls oftener than ",
                                               LimitOf(method.policy.rate()).per_s,
                                               " times a second; try again in a moment"));
  }
  const auto find = [&](const std::string& id) {
    return FindJob(caller.view_, parts_.history, id);
  };
  bool hidden = false;
  absl::Status status =
      Authorize(caller.view_->state, who, method, request, find, &caller.job_, &hidden);
  if (status.ok()) return caller;
  if (hidden || absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status))
    Record(method, who, request, status, std::string(status.message()));
  return status;
}

void Caller::Change(Engine::Operation operation, Engine::Done done, AuditedWhen audited) const {
  guard_->parts_.engine->Call(
      [self = *this, operation = std::move(operation)](
          const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const auto find = [&](const std::string& id) -> std::shared_ptr<const JobRow> {
          const JobRow* job = state.FindJobByText(id);
          return {std::shared_ptr<void>(), job};  // State's own; looked at here only
        };
        absl::Status status = Authorize(state, *self.who_, *self.method_, *self.request_, find);
        if (!status.ok()) return status;
        return operation(state);
      },
      [self = *this, done = std::move(done), audited](absl::Status status) {
        Audit::Written written;
        if (audited == kOnceOnDisk) {
          written = [done, status](const absl::Status& kept) {
            done(kept.ok() ? status
                           : absl::UnavailableError(
                                 "the audit can't be written now; musterd's log says why"));
          };
        }
        if (self.method_->policy.audited())
          self.guard_->Record(*self.method_, *self.who_, *self.request_, status, *self.detail_,
                              std::move(written));
        if (audited == kOnceQueued || !self.method_->policy.audited()) done(std::move(status));
      });
}

void Guard::Record(const MethodPolicy& method, const Principal& who, const Message& request,
                   const absl::Status& outcome, const std::string& detail, Audit::Written written) {
  if (parts_.audit == nullptr) {
    if (written) written(absl::OkStatus());
    return;
  }
  pb::AuditRecord record;
  record.set_at_ns(parts_.clock->WallNs());
  record.set_user(who.user);
  record.set_uid(who.uid);
  record.set_method(method.name);
  record.set_object(ObjectOf(method, request));
  record.set_outcome(absl::StatusCodeToString(outcome.code()));
  record.set_detail(who.token.empty()
                        ? detail
                        : absl::StrCat("by token ", who.token, detail.empty() ? "" : ": ", detail));
  parts_.audit->Add(std::move(record), std::move(written));
}

}  // namespace muster
