// Roles on the queue tree: who has which where, and what that lets them do and see. Pure.
//
// A role holds at its node and at all below. Nodes are found by their whole path in the tree, never
// by how a path begins: `research2` is not below `research`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/v1/access.pb.h"
#include "scheduler/access/policy.h"
#include "scheduler/access/principal.h"
#include "scheduler/state/state.h"

namespace muster {

std::string RoleName(pb::Role role);             // "viewer"; "no role"
pb::Role RoleNamed(std::string_view name);       // UNSPECIFIED if there is none
pb::Role MinRole(pb::Right right);               // UNSPECIFIED: it takes no role
bool OwnerHas(pb::Right right);                  // of a job: on it, without any role
std::string QueueText(const std::string& path);  // "queue research", "the root of the queues"

// The highest role at a node, from bindings and from the queues' own lists: `admin` of the node or
// one above; `submit` of the node or, where that has none, the nearest above. UNSPECIFIED: none, or
// there is no such node (-1).
struct Held {
  pb::Role role = pb::ROLE_UNSPECIFIED;
  std::string why;  // "a binding of group nlp at queue research"
};
// Whether a role goes by that name at any node: by a binding of a user, or by a queue's `admin` or
// `submit`, where a name may be meant for a group.
bool HasRolesByName(const State& state, const std::string& name);
// Of who came with a token that has scopes, no more than these give.
Held HeldAt(const State& state, const Principal& who, int32_t node);
// The most that the token gives at a node, whatever its owner has there; without one, all.
pb::Role ScopeAt(const State& state, const Principal& who, int32_t node);
std::string ScopeText(const pb::Scope& scope);  // "submit:research/nlp"
// Whether a token of theirs may have the scope: it gives no more than its owner has.
absl::Status CheckScope(const State& state, const Principal& who, const pb::Scope& scope);

// What one caller may see of one State, each node worked out once. One thread. Both must outlive
// it.
class Sight {
 public:
  Sight(const State& state, const Principal& who);

  pb::Role RoleAt(int32_t node) const;
  bool all() const { return RoleAt(0) >= pb::ROLE_VIEWER; }  // every queue and job
  bool Output(const JobRow& job) const { return May(pb::RIGHT_READ_LOGS, job); }
  bool Sees(const JobRow& job) const { return May(pb::RIGHT_SEE, job); }
  bool SeesJob(uint64_t number) const;  // false for one that State has forgotten, but with all()
  bool ReadsOutputOf(uint64_t number) const;  // likewise
  bool May(pb::Right right, const JobRow& job) const;
  // It or one below it: its name may be known. False for what isn't there.
  bool Knows(const std::string& queue) const;
  bool Sees(const std::string& queue) const;  // viewer at it
  bool Anywhere(pb::Role role) const;         // at any node
  const State& state() const { return state_; }
  const Principal& who() const { return who_; }

 private:
  const State& state_;
  const Principal& who_;
  mutable std::vector<int8_t> roles_;  // by node; -1: not known yet
};

// The queues that applying `tree` would change, by the node above each, which decides: paths,
// ascending. A queue that is made below a new one counts for the nearest that is there.
std::vector<std::string> ParentsOfChanged(const State& state, const pb::QueueTree& tree);
// The node above the first queue that `tree` names though its sender can't know of it. For them it
// is a new one, which takes admin there: whoever is that sees all below.
std::optional<std::string> AboveHidden(const Sight& sight, const pb::QueueTree& tree);
// `tree` with what its sender may not see of the present one as it is: queues that it leaves out
// stay, quotas of those that it only passes through, too.
pb::QueueTree WithUnseen(const Sight& sight, const pb::QueueTree& tree);

// Empty if the binding may be changed; else why not: nobody grants more than they have, and the
// root keeps an admin.
absl::Status CheckBinding(const State& state, const Principal& who, const pb::Binding& binding,
                          bool revoked);

}  // namespace muster
