// Roles on the queue tree, bindings and the queues' own lists.
#include "scheduler/access/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobBuilder;
using testing::SystemBuilder;

Principal User(const std::string& name, std::vector<std::string> groups = {}) {
  return {20'000, name, std::move(groups), false};
}

void Bind(SystemBuilder* system, const std::string& user, const std::string& group,
          const std::string& queue, pb::Role role) {
  pb::Event event;
  pb::Binding* binding = event.mutable_binding_changed()->mutable_binding();
  binding->set_user(user);
  binding->set_group(group);
  binding->set_queue(queue);
  binding->set_role(role);
  system->Do(event);
}

pb::QueueTree Tree() {
  pb::QueueTree tree;
  pb::QueueSpec* research = tree.add_queues();
  research->set_name("research");
  research->add_queues()->set_name("nlp");
  research->add_queues()->set_name("vision");
  tree.add_queues()->set_name("research2");
  return tree;
}

SystemBuilder Four(const pb::QueueTree& tree = Tree()) {
  SystemBuilder system;
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() = tree;
  system.Do(event);
  return system;
}

pb::Role At(const State& state, const Principal& who, const std::string& queue) {
  return HeldAt(state, who, state.queues().Node(queue)).role;
}

TEST(Roles, HoldAtTheirNodeAndBelowNeverBesideIt) {
  SystemBuilder system = Four();
  Bind(&system, "ann", "", "research", pb::ROLE_OPERATOR);
  const State& state = system.state;
  EXPECT_EQ(At(state, User("ann"), "research"), pb::ROLE_OPERATOR);
  EXPECT_EQ(At(state, User("ann"), "research/nlp"), pb::ROLE_OPERATOR);
  EXPECT_EQ(At(state, User("ann"), "research2"), pb::ROLE_UNSPECIFIED)
      << "its name only begins alike";
  EXPECT_EQ(At(state, User("ann"), ""), pb::ROLE_UNSPECIFIED);
  EXPECT_EQ(At(state, User("bob"), "research"), pb::ROLE_UNSPECIFIED);
  EXPECT_EQ(At(state, User("ann"), "gone"), pb::ROLE_UNSPECIFIED);
}

TEST(Roles, ANameHasRolesByAUsersBindingOrAQueuesList) {
  pb::QueueTree tree = Tree();
  tree.mutable_queues(0)->mutable_queues(1)->add_admin("lea");
  tree.mutable_queues(1)->add_submit("nlp-team");
  SystemBuilder system = Four(tree);
  Bind(&system, "ann", "", "research", pb::ROLE_OPERATOR);
  Bind(&system, "", "staff", "", pb::ROLE_VIEWER);
  for (const char* name : {"ann", "lea", "nlp-team"})
    EXPECT_TRUE(HasRolesByName(system.state, name)) << name;
  for (const char* name : {"staff", "bob", ""})
    EXPECT_FALSE(HasRolesByName(system.state, name)) << name;
}

// Who came with a token of these scopes.
Principal WithToken(const std::string& user,
                    const std::vector<std::pair<pb::Role, std::string>>& scopes) {
  Principal who = User(user);
  who.token = "t";
  for (const auto& [role, queue] : scopes) {
    who.scopes.emplace_back().set_role(role);
    who.scopes.back().set_queue(queue);
  }
  return who;
}

TEST(Roles, ATokenGivesNoMoreThanItsScopesAndNoMoreThanItsOwnerHas) {
  SystemBuilder system = Four();
  Bind(&system, "ann", "", "", pb::ROLE_OPERATOR);
  Bind(&system, "bob", "", "research/nlp", pb::ROLE_VIEWER);
  const State& state = system.state;
  const Principal submits = WithToken("ann", {{pb::ROLE_SUBMITTER, "research"}});
  EXPECT_EQ(At(state, submits, "research"), pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(state, submits, "research/nlp"), pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(state, submits, "research2"), pb::ROLE_UNSPECIFIED) << "its name only begins alike";
  EXPECT_EQ(At(state, submits, ""), pb::ROLE_UNSPECIFIED);
  const Principal two =
      WithToken("ann", {{pb::ROLE_VIEWER, ""}, {pb::ROLE_OPERATOR, "research/nlp"}});
  EXPECT_EQ(At(state, two, "research/nlp"), pb::ROLE_OPERATOR);
  EXPECT_EQ(At(state, two, "research/vision"), pb::ROLE_VIEWER);
  EXPECT_EQ(At(state, WithToken("bob", {{pb::ROLE_OPERATOR, ""}}), "research/nlp"),
            pb::ROLE_VIEWER);
  EXPECT_EQ(At(state, WithToken("ann", {}), "research"), pb::ROLE_UNSPECIFIED);
  EXPECT_EQ(HeldAt(state, submits, state.queues().Node("research")).why, "the scopes of token t");
}

TEST(Roles, OfOnesOwnJobsATokenReachesThoseInItsQueues) {
  SystemBuilder system = Four();
  JobBuilder job("research/nlp");
  const uint64_t number = job.SubmitTo(&system);
  const JobRow& row = *system.state.FindJob(number);
  const auto may = [&](pb::Right right, pb::Role role, const std::string& queue) {
    const Principal who = WithToken(row.owner, {{role, queue}});
    return Sight(system.state, who).May(right, row);
  };
  for (const pb::Right right : {pb::RIGHT_SEE, pb::RIGHT_READ_LOGS, pb::RIGHT_OPERATE}) {
    const Principal owner = User(row.owner);
    EXPECT_TRUE(Sight(system.state, owner).May(right, row)) << "without a token: all";
    EXPECT_TRUE(may(right, pb::ROLE_SUBMITTER, "research"));
    EXPECT_FALSE(may(right, pb::ROLE_OPERATOR, "research2"));
    EXPECT_EQ(may(right, pb::ROLE_VIEWER, "research"), right == pb::RIGHT_SEE);
  }
}

TEST(Roles, ATokenIsMadeForWhatItsOwnerHas) {
  SystemBuilder system = Four();
  Bind(&system, "ann", "", "research/nlp", pb::ROLE_ADMIN);
  const struct {
    pb::Role role;
    const char* queue;
    absl::StatusCode code;
  } kCases[] = {
      {pb::ROLE_VIEWER, "research/nlp", absl::StatusCode::kOk},
      {pb::ROLE_OPERATOR, "research/nlp", absl::StatusCode::kOk},
      {pb::ROLE_ADMIN, "research/nlp", absl::StatusCode::kInvalidArgument},
      {pb::ROLE_UNSPECIFIED, "research/nlp", absl::StatusCode::kInvalidArgument},
      {pb::ROLE_VIEWER, "research", absl::StatusCode::kPermissionDenied},
      {pb::ROLE_VIEWER, "", absl::StatusCode::kPermissionDenied},
      {pb::ROLE_VIEWER, "research2", absl::StatusCode::kNotFound},
      {pb::ROLE_VIEWER, "gone", absl::StatusCode::kNotFound},
  };
  for (const auto& c : kCases) {
    pb::Scope scope;
    scope.set_role(c.role);
    scope.set_queue(c.queue);
    EXPECT_EQ(CheckScope(system.state, User("ann"), scope).code(), c.code)
        << RoleName(c.role) << " " << c.queue;
  }
}

TEST(Roles, TheHighestCountsOfUserAndGroups) {
  SystemBuilder system = Four();
  Bind(&system, "ann", "", "", pb::ROLE_VIEWER);
  Bind(&system, "", "nlp", "research/nlp", pb::ROLE_ADMIN);
  Bind(&system, "ann", "", "research/nlp", pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(system.state, User("ann"), "research/nlp"), pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(system.state, User("ann", {"nlp"}), "research/nlp"), pb::ROLE_ADMIN);
  EXPECT_EQ(At(system.state, User("ann", {"nlp"}), "research/vision"), pb::ROLE_VIEWER);
  EXPECT_EQ(At(system.state, User("nlp"), "research/nlp"), pb::ROLE_UNSPECIFIED)
      << "a user isn't the group of their name";
  EXPECT_THAT(HeldAt(system.state, User("ann", {"nlp"}), 2).why, HasSubstr("group nlp"));
}

TEST(Roles, WhereNobodyIsBoundNobodyMayAnything) {
  const SystemBuilder system = Four();
  for (const char* queue : {"", "research", "research/nlp"})
    EXPECT_EQ(At(system.state, User("ann", {"nlp"}), queue), pb::ROLE_UNSPECIFIED);
  EXPECT_EQ(At(system.state, Principal(), ""), pb::ROLE_UNSPECIFIED);
  EXPECT_EQ(At(system.state, {0, "root", {}, true}, ""), pb::ROLE_ADMIN);
}

TEST(Roles, OfTheQueuesOwnListsTheNearestSubmitAndEveryAdminCount) {
  pb::QueueTree tree = Tree();
  tree.mutable_queues(0)->add_submit("*");
  tree.mutable_queues(0)->add_admin("lea");
  tree.mutable_queues(0)->mutable_queues(0)->add_submit("nlp");
  tree.mutable_queues(0)->mutable_queues(0)->add_admin("max");
  const SystemBuilder system = Four(tree);
  const State& state = system.state;
  EXPECT_EQ(At(state, User("ann"), "research/vision"), pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(state, User("ann"), "research/nlp"), pb::ROLE_UNSPECIFIED) << "it has its own list";
  EXPECT_EQ(At(state, User("ann", {"nlp"}), "research/nlp"), pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(state, User("ann"), "research2"), pb::ROLE_UNSPECIFIED);
  EXPECT_EQ(At(state, User("lea"), "research/nlp"), pb::ROLE_ADMIN);
  EXPECT_EQ(At(state, User("max"), "research/nlp"), pb::ROLE_ADMIN);
  EXPECT_EQ(At(state, User("max"), "research"), pb::ROLE_SUBMITTER);
  EXPECT_EQ(At(state, Principal(), "research"), pb::ROLE_UNSPECIFIED)
      << "* is everybody who is known";
}

TEST(Sight, JobsAreTheirOwnersAndThoseOfQueuesThatOneSees) {
  SystemBuilder system = Four();
  Bind(&system, "vic", "", "research", pb::ROLE_VIEWER);
  Bind(&system, "oli", "", "research", pb::ROLE_OPERATOR);
  JobBuilder job("research/nlp");
  job.SubmitTo(&system, "key");
  const JobRow& row = *system.state.FindJob(1);
  const struct {
    Principal who;
    bool sees, output;
  } cases[] = {
      {User(row.owner), true, true}, {User("vic"), true, false},  {User("oli"), true, true},
      {User("bob"), false, false},   {Principal(), false, false},
  };
  for (const auto& c : cases) {
    const Sight sight(system.state, c.who);
    EXPECT_EQ(sight.Sees(row), c.sees) << c.who.user;
    EXPECT_EQ(sight.SeesJob(1), c.sees) << c.who.user;
    EXPECT_EQ(sight.Output(row), c.output) << c.who.user;
    EXPECT_FALSE(sight.SeesJob(99)) << c.who.user;
  }
}

TEST(Sight, AQueueIsKnownByNameToWhoSeesOneBelowIt) {
  SystemBuilder system = Four();
  Bind(&system, "ann", "", "research/nlp", pb::ROLE_VIEWER);
  const Principal ann = User("ann");
  const Sight sight(system.state, ann);
  EXPECT_TRUE(sight.Knows("research"));
  EXPECT_FALSE(sight.Sees("research"));
  EXPECT_TRUE(sight.Sees("research/nlp"));
  EXPECT_FALSE(sight.Knows("research/vision"));
  EXPECT_FALSE(sight.Knows("research2"));
  EXPECT_FALSE(sight.Knows("gone"));
}

// ---- the tree ----

TEST(ParentsOfChanged, NameTheNodeAboveEachQueueThatChanges) {
  const SystemBuilder system = Four();
  pb::QueueTree tree = Tree();
  EXPECT_THAT(ParentsOfChanged(system.state, tree), IsEmpty());
  tree.mutable_queues(0)->mutable_queues(1)->set_held(true);
  EXPECT_THAT(ParentsOfChanged(system.state, tree), ElementsAre("research"));
  tree.mutable_queues(0)->mutable_queues(1)->add_queues()->set_name("new");
  EXPECT_THAT(ParentsOfChanged(system.state, tree), ElementsAre("research", "research/vision"));
  tree = Tree();
  tree.mutable_queues()->RemoveLast();
  EXPECT_THAT(ParentsOfChanged(system.state, tree), ElementsAre(""));
  tree = Tree();
  tree.mutable_queues(1)->set_name("research3");
  EXPECT_THAT(ParentsOfChanged(system.state, tree), ElementsAre(""));
}

TEST(WithUnseen, WhatItsSenderDoesNotSeeStaysAsItIs) {
  pb::QueueTree tree = Tree();
  tree.mutable_queues(0)->set_max_time_limit_ns(7);
  SystemBuilder system = Four(tree);
  Bind(&system, "ann", "", "research/nlp", pb::ROLE_ADMIN);
  const Principal ann = User("ann");
  const Sight sight(system.state, ann);
  pb::QueueTree sent;  // as a list shows it to her, and one queue more
  pb::QueueSpec* research = sent.add_queues();
  research->set_name("research");
  research->add_queues()->set_name("nlp");
  research->mutable_queues(0)->add_queues()->set_name("mine");
  EXPECT_THAT(ParentsOfChanged(system.state, WithUnseen(sight, sent)), ElementsAre("research/nlp"));
  research->set_max_time_limit_ns(9);
  EXPECT_THAT(ParentsOfChanged(system.state, WithUnseen(sight, sent)), ElementsAre("research/nlp"))
      << "what she only passes through isn't hers to change";
  sent.clear_queues();
  EXPECT_THAT(ParentsOfChanged(system.state, WithUnseen(sight, sent)), ElementsAre(""))
      << "what she sees is taken away";
}

// ---- bindings ----

struct GrantCase {
  const char* name;
  const char* who;
  const char* queue;
  const char* to;
  pb::Role role;
  bool revoked;
  absl::StatusCode code;
};

TEST(AboveHidden, IsTheNodeWhereAQueueThatItsSenderCannotKnowWouldBeMade) {
  SystemBuilder system = Four(Tree());
  Bind(&system, "ann", "", "research/nlp", pb::ROLE_ADMIN);
  const Principal ann = User("ann");
  const Sight sight(system.state, ann);
  pb::QueueTree sent;
  sent.add_queues()->set_name("research");
  sent.mutable_queues(0)->add_queues()->set_name("nlp");
  sent.add_queues()->set_name("new");
  EXPECT_EQ(AboveHidden(sight, sent), std::nullopt);
  sent.mutable_queues(0)->add_queues()->set_name("vision");
  EXPECT_EQ(AboveHidden(sight, sent), "research");
  sent.mutable_queues(1)->set_name("research2");
  sent.mutable_queues(0)->mutable_queues()->RemoveLast();
  EXPECT_EQ(AboveHidden(sight, sent), "");
}

TEST(CheckBinding, NobodyGrantsMoreThanTheyHaveAndTheRootKeepsAnAdmin) {
  SystemBuilder system = Four();
  Bind(&system, "root-ann", "", "", pb::ROLE_ADMIN);
  Bind(&system, "oli", "", "research", pb::ROLE_OPERATOR);
  Bind(&system, "lea", "", "research", pb::ROLE_ADMIN);
  using enum absl::StatusCode;
  const GrantCase cases[] = {
      {"in her own tree", "lea", "research/nlp", "bob", pb::ROLE_ADMIN, false, kOk},
      {"at her own node", "lea", "research", "bob", pb::ROLE_VIEWER, false, kOk},
      {"above it", "lea", "", "bob", pb::ROLE_VIEWER, false, kPermissionDenied},
      {"beside it", "lea", "research2", "bob", pb::ROLE_VIEWER, false, kPermissionDenied},
      {"more than an operator has", "oli", "research", "bob", pb::ROLE_ADMIN, false,
       kPermissionDenied},
      {"no role", "lea", "research", "bob", pb::ROLE_UNSPECIFIED, false, kInvalidArgument},
      {"an unknown queue", "lea", "gone", "bob", pb::ROLE_VIEWER, false, kNotFound},
      {"revoke what isn't there", "lea", "research", "bob", pb::ROLE_VIEWER, true, kNotFound},
      {"revoke more than an operator has", "oli", "research", "lea", pb::ROLE_VIEWER, true,
       kPermissionDenied},
      {"revoke another's", "lea", "research", "oli", pb::ROLE_UNSPECIFIED, true, kOk},
      {"the last admin", "root-ann", "", "root-ann", pb::ROLE_ADMIN, true, kFailedPrecondition},
      {"the last admin, lowered", "root-ann", "", "root-ann", pb::ROLE_OPERATOR, false,
       kFailedPrecondition},
      {"the last admin, as before", "root-ann", "", "root-ann", pb::ROLE_ADMIN, false, kOk},
  };
  for (const GrantCase& c : cases) {
    pb::Binding binding;
    binding.set_user(c.to);
    binding.set_queue(c.queue);
    binding.set_role(c.role);
    EXPECT_EQ(CheckBinding(system.state, User(c.who), binding, c.revoked).code(), c.code) << c.name;
  }
  Bind(&system, "", "admins", "", pb::ROLE_ADMIN);
  pb::Binding binding;
  binding.set_user("root-ann");
  EXPECT_TRUE(CheckBinding(system.state, User("root-ann"), binding, true).ok());
  binding.set_group("both");
  EXPECT_EQ(CheckBinding(system.state, User("root-ann"), binding, true).code(), kInvalidArgument);
}

}  // namespace
}  // namespace muster
