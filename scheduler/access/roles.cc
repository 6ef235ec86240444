#include "scheduler/access/roles.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr std::array<const char*, 5> kRoleNames = {"no role", "viewer", "submitter", "operator",
                                                   "admin"};

// A name of a queue's list: of a user or a group, or "*" for everybody who is known.
bool Names(const std::string& listed, const Principal& who) {
  return listed == "*" || listed == who.user ||
         std::find(who.groups.begin(), who.groups.end(), listed) != who.groups.end();
}

template <typename List>
const std::string* NamedIn(const List& list, const Principal& who) {
  for (const std::string& name : list) {
    if (Names(name, who)) return &name;
  }
  return nullptr;
}

void Raise(pb::Role role, std::string why, Held* held) {
  if (role <= held->role) return;
  held->role = role;
  held->why = std::move(why);
}

void RaiseByBinding(const State& state, const std::string& path, bool group,
                    const std::string& name, Held* held) {
  const auto found = state.bindings().find(BindingKey{path, group, name});
  if (found == state.bindings().end() || found->second <= held->role) return;
  Raise(found->second,
        absl::StrCat("a binding of ", group ? "group " : "user ", name, " at ", QueueText(path)),
        held);
}

}  // namespace

std::string RoleName(pb::Role role) {
  return kRoleNames.at(static_cast<size_t>(std::clamp<int>(role, 0, 4)));
}

pb::Role RoleNamed(std::string_view name) {
  for (size_t r = 1; r < kRoleNames.size(); ++r) {
    if (name == kRoleNames[r]) return static_cast<pb::Role>(r);
  }
  return pb::ROLE_UNSPECIFIED;
}

pb::Role MinRole(pb::Right right) {
  switch (right) {
    case pb::RIGHT_SEE:
      return pb::ROLE_VIEWER;
    case pb::RIGHT_SUBMIT:
      return pb::ROLE_SUBMITTER;
    case pb::RIGHT_READ_LOGS:
    case pb::RIGHT_OPERATE:
      return pb::ROLE_OPERATOR;
    case pb::RIGHT_ADMINISTER:
      return pb::ROLE_ADMIN;
    default:
      return pb::ROLE_UNSPECIFIED;
  }
}

bool OwnerHas(pb::Right right) {
  return right == pb::RIGHT_SEE || right == pb::RIGHT_READ_LOGS || right == pb::RIGHT_OPERATE;
}

std::string QueueText(const std::string& path) {
  return path.empty() ? "the root of the queues" : absl::StrCat("queue ", path);
}

bool HasRolesByName(const State& state, const std::string& name) {
  const auto named = [&name](const auto& list) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  const auto& nodes = state.queues().nodes;
  return std::any_of(state.bindings().begin(), state.bindings().end(),
                     [&name](const auto& binding) {
                       return !binding.first.group && binding.first.name == name;
                     }) ||
         std::any_of(nodes.begin(), nodes.end(), [&named](const QueueNode& node) {
           return named(node.spec.admin()) || named(node.spec.submit());
         });
}

namespace {

Held HeldWithoutToken(const State& state, const Principal& who, int32_t node) {
  Held held;
  if (node < 0 || !who.known()) return held;
  if (who.trusted) {
    Raise(pb::ROLE_ADMIN, "root and the user who runs musterd may do everything", &held);
    return held;
  }
  bool submit_known = false;
  for (int32_t n = node; n >= 0; n = state.queues().nodes[n].parent) {
    const QueueNode& row = state.queues().nodes[n];
    RaiseByBinding(state, row.path, false, who.user, &held);
    for (const std::string& group : who.groups) RaiseByBinding(state, row.path, true, group, &held);
    if (const std::string* name = NamedIn(row.spec.admin(), who); name != nullptr)
      Raise(pb::ROLE_ADMIN, absl::StrCat("`admin: ", *name, "` of ", QueueText(row.path)), &held);
    if (submit_known || row.spec.submit().empty()) continue;
    submit_known = true;
    if (const std::string* name = NamedIn(row.spec.submit(), who); name != nullptr)
      Raise(pb::ROLE_SUBMITTER, absl::StrCat("`submit: ", *name, "` of ", QueueText(row.path)),
            &held);
  }
  return held;
}

}  // namespace

pb::Role ScopeAt(const State& state, const Principal& who, int32_t node) {
  if (who.token.empty()) return pb::ROLE_ADMIN;
  pb::Role role = pb::ROLE_UNSPECIFIED;
  for (int32_t n = node; n >= 0; n = state.queues().nodes[n].parent) {
    for (const pb::Scope& scope : who.scopes) {
      if (scope.queue() == state.queues().nodes[n].path) role = std::max(role, scope.role());
    }
  }
  return role;
}

Held HeldAt(const State& state, const Principal& who, int32_t node) {
  Held held = HeldWithoutToken(state, who, node);
  const pb::Role most = node < 0 ? held.role : ScopeAt(state, who, node);
  if (held.role <= most) return held;
  held.role = most;
  held.why = absl::StrCat("the scopes of token ", who.token);
  return held;
}

std::string ScopeText(const pb::Scope& scope) {
  const char* const verb = scope.role() == pb::ROLE_VIEWER      ? "view"
                           : scope.role() == pb::ROLE_SUBMITTER ? "submit"
                                                                : "operate";
  return absl::StrCat(verb, ":", scope.queue().empty() ? "/" : scope.queue());
}

absl::Status CheckScope(const State& state, const Principal& who, const pb::Scope& scope) {
  if (scope.role() < pb::ROLE_VIEWER || scope.role() > pb::ROLE_OPERATOR)
    return absl::InvalidArgumentError("scope: gives view, submit or operate, and nothing more");
  const int32_t node = state.queues().Node(scope.queue());
  if (node < 0 || (!scope.queue().empty() && !Sight(state, who).Knows(scope.queue()))) {
    return absl::NotFoundError(absl::StrCat("there is no queue \"", scope.queue(), "\" for you"));
  }
  const pb::Role own = HeldAt(state, who, node).role;
  if (scope.role() <= own) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(ScopeText(scope), ": you are ", RoleName(own), " at ", QueueText(scope.queue()),
                   ", and a token gives no more than its owner has"));
}

// ---- Sight ----

Sight::Sight(const State& state, const Principal& who)
    : state_(state), who_(who), roles_(state.queues().nodes.size(), -1) {}

pb::Role Sight::RoleAt(int32_t node) const {
  if (node < 0) return RoleAt(0);  // of a queue that is gone: whoever sees everything
  int8_t& role = roles_[static_cast<size_t>(node)];
  if (role < 0) role = static_cast<int8_t>(HeldAt(state_, who_, node).role);
  return static_cast<pb::Role>(role);
}

bool Sight::May(pb::Right right, const JobRow& job) const {
  if (!who_.known()) return false;
  const int32_t node = state_.queues().Find(job.spec->queue());
  // Of one's own job a token lets one do what a submitter may, or look.
  const pb::Role of_owner = right == pb::RIGHT_SEE ? pb::ROLE_VIEWER : pb::ROLE_SUBMITTER;
  if (OwnerHas(right) && job.owner == who_.user &&
      ScopeAt(state_, who_, std::max(0, node)) >= of_owner)
    return true;
  return RoleAt(node) >= MinRole(right);
}

bool Sight::SeesJob(uint64_t number) const {
  if (all()) return true;
  const JobRow* job = state_.FindJob(number);
  return job != nullptr && Sees(*job);
}

bool Sight::ReadsOutputOf(uint64_t number) const {
  if (RoleAt(0) >= MinRole(pb::RIGHT_READ_LOGS)) return true;
  const JobRow* job = state_.FindJob(number);
  return job != nullptr && Output(*job);
}

bool Sight::Sees(const std::string& queue) const {
  const int32_t node = state_.queues().Node(queue);
  return node >= 0 && RoleAt(node) >= pb::ROLE_VIEWER;
}

bool Sight::Knows(const std::string& queue) const {
  const int32_t node = state_.queues().Node(queue);
  if (node < 0) return false;
  if (RoleAt(node) >= pb::ROLE_VIEWER) return true;
  const std::vector<int32_t>& below = state_.queues().nodes[node].children;
  return std::any_of(below.begin(), below.end(),
                     [&](int32_t child) { return Knows(state_.queues().nodes[child].path); });
}

bool Sight::Anywhere(pb::Role role) const {
  for (size_t n = 0; n < state_.queues().nodes.size(); ++n) {
    if (RoleAt(static_cast<int32_t>(n)) >= role) return true;
  }
  return false;
}

// ---- the tree ----

namespace {

using Queues = google::protobuf::RepeatedPtrField<pb::QueueSpec>;

pb::QueueSpec Alone(const pb::QueueSpec& queue) {
  pb::QueueSpec alone = queue;
  alone.clear_queues();
  return alone;
}

// Guarantees for each cluster follow from the plain ones when a tree is stored: a tree that was
// read and one that was written differ in them and mean the same.
bool SameQueue(const pb::QueueSpec& a, const pb::QueueSpec& b) {
  pb::QueueSpec left = Alone(a), right = Alone(b);
  for (auto& [flavour, quota] : *left.mutable_quota()) {
    const auto other = right.mutable_quota()->find(flavour);
    if (other == right.mutable_quota()->end()) continue;
    if (quota.guarantee_per_cluster().empty() || other->second.guarantee_per_cluster().empty()) {
      quota.clear_guarantee_per_cluster();
      other->second.clear_guarantee_per_cluster();
    }
  }
  return google::protobuf::util::MessageDifferencer::Equals(left, right);
}

const pb::QueueSpec* Named(const Queues& queues, const std::string& name) {
  for (const pb::QueueSpec& queue : queues) {
    if (queue.name() == name) return &queue;
  }
  return nullptr;
}

// `above`: the path of the nearest node above that is there now.
void AddChanged(const Queues& before, const Queues& after, const std::string& above,
                std::set<std::string>* parents) {
  for (const pb::QueueSpec& queue : before) {
    if (Named(after, queue.name()) == nullptr) parents->insert(above);
  }
  for (const pb::QueueSpec& queue : after) {
    const pb::QueueSpec* was = Named(before, queue.name());
    if (was == nullptr) {
      parents->insert(above);  // and all that is below it
      continue;
    }
    if (!SameQueue(*was, queue)) parents->insert(above);
    AddChanged(was->queues(), queue.queues(),
               above.empty() ? queue.name() : absl::StrCat(above, "/", queue.name()), parents);
  }
}

std::optional<std::string> AboveHidden(const Sight& sight, const Queues& present,
                                       const Queues& named, const std::string& above) {
  for (const pb::QueueSpec& queue : named) {
    const pb::QueueSpec* was = Named(present, queue.name());
    if (was == nullptr) continue;
    const std::string path = above.empty() ? queue.name() : absl::StrCat(above, "/", queue.name());
    if (!sight.Knows(path)) return above;
    if (std::optional<std::string> below = AboveHidden(sight, was->queues(), queue.queues(), path))
      return below;
  }
  return std::nullopt;
}

void AddUnseen(const Sight& sight, const Queues& present, const std::string& above,
               Queues* queues) {
  for (const pb::QueueSpec& was : present) {
    const std::string path = above.empty() ? was.name() : absl::StrCat(above, "/", was.name());
    if (sight.Sees(path)) continue;  // with all that is below it
    pb::QueueSpec* now = nullptr;
    for (pb::QueueSpec& queue : *queues) {
      if (queue.name() == was.name()) now = &queue;
    }
    if (now == nullptr) {
      if (!sight.Knows(path)) *queues->Add() = was;
      continue;
    }
    Queues children;
    children.Swap(now->mutable_queues());
    *now = Alone(was);
    AddUnseen(sight, was.queues(), path, &children);
    now->mutable_queues()->Swap(&children);
  }
}

}  // namespace

std::vector<std::string> ParentsOfChanged(const State& state, const pb::QueueTree& tree) {
  std::set<std::string> parents;
  AddChanged(state.queue_tree().queues(), tree.queues(), "", &parents);
  return {parents.begin(), parents.end()};
}

std::optional<std::string> AboveHidden(const Sight& sight, const pb::QueueTree& tree) {
  return AboveHidden(sight, sight.state().queue_tree().queues(), tree.queues(), "");
}

pb::QueueTree WithUnseen(const Sight& sight, const pb::QueueTree& tree) {
  pb::QueueTree whole = tree;
  if (!sight.all())
    AddUnseen(sight, sight.state().queue_tree().queues(), "", whole.mutable_queues());
  return whole;
}

// ---- bindings ----

absl::Status CheckBinding(const State& state, const Principal& who, const pb::Binding& binding,
                          bool revoked) {
  const int32_t node = state.queues().Node(binding.queue());
  const bool named = binding.user().empty() != binding.group().empty();
  if (!named) return absl::InvalidArgumentError("binding: name a user or a group");
  if (node < 0)
    return absl::NotFoundError(absl::StrCat("there is no queue \"", binding.queue(), "\""));
  const BindingKey key{binding.queue(), binding.user().empty(),
                       binding.user().empty() ? binding.group() : binding.user()};
  const auto before = state.bindings().find(key);
  if (revoked && before == state.bindings().end()) {
    return absl::NotFoundError(absl::StrCat(key.group ? "group " : "user ", key.name,
                                            " has no binding at ", QueueText(key.queue),
                                            ". See: muster access list"));
  }
  const pb::Role own = HeldAt(state, who, node).role;
  const pb::Role wanted = revoked ? before->second : binding.role();
  if (!revoked && (wanted < pb::ROLE_VIEWER || wanted > pb::ROLE_ADMIN))
    return absl::InvalidArgumentError("binding.role: viewer, submitter, operator or admin");
  if (wanted > own) {
    return absl::PermissionDeniedError(
        absl::StrCat("you are ", RoleName(own), " at ", QueueText(key.queue),
                     ", and nobody grants or revokes more than that"));
  }
  const bool was_admin = before != state.bindings().end() && before->second == pb::ROLE_ADMIN;
  if (!key.queue.empty() || !was_admin || (!revoked && wanted == pb::ROLE_ADMIN))
    return absl::OkStatus();
  const bool others = std::any_of(
      state.bindings().begin(), state.bindings().end(), [&](const Bindings::value_type& row) {
        return row.first.queue.empty() && row.second == pb::ROLE_ADMIN && row.first != key;
      });
  if (others) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(key.name,
                   " is the last admin of the root. Make another one first: muster access grant "
                   "NAME admin /"));
}

}  // namespace muster
