// Roles on nodes of the queue tree, as State keeps them.
#include <gtest/gtest.h>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::SystemBuilder;

void Bind(SystemBuilder* system, const std::string& user, const std::string& queue, pb::Role role,
          bool revoked = false) {
  pb::Event event;
  event.mutable_binding_changed()->mutable_binding()->set_user(user);
  event.mutable_binding_changed()->mutable_binding()->set_queue(queue);
  event.mutable_binding_changed()->mutable_binding()->set_role(role);
  event.mutable_binding_changed()->set_revoked(revoked);
  system->Do(event);
}

TEST(Bindings, AUserHasOneRoleAtANodeAndTheNewestCounts) {
  SystemBuilder system;
  system.Queue("research");
  Bind(&system, "ann", "research", pb::ROLE_VIEWER);
  Bind(&system, "ann", "research", pb::ROLE_OPERATOR);
  Bind(&system, "ann", "", pb::ROLE_SUBMITTER);
  EXPECT_EQ(system.state.bindings(), (Bindings{{{"", false, "ann"}, pb::ROLE_SUBMITTER},
                                               {{"research", false, "ann"}, pb::ROLE_OPERATOR}}));
  Bind(&system, "ann", "research", pb::ROLE_UNSPECIFIED, true);
  EXPECT_EQ(system.state.bindings(), (Bindings{{{"", false, "ann"}, pb::ROLE_SUBMITTER}}));
}

TEST(Bindings, OfAnUnknownQueueOrToNobodyAreWithoutEffect) {
  SystemBuilder system;
  system.Queue("research");
  Bind(&system, "ann", "research2", pb::ROLE_VIEWER);
  Bind(&system, "", "research", pb::ROLE_VIEWER);
  Bind(&system, "ann", "research", pb::ROLE_UNSPECIFIED);
  EXPECT_TRUE(system.state.bindings().empty());
}

TEST(Bindings, GoWithTheirQueueSoThatAnotherOfItsNameGivesNobodyAnything) {
  SystemBuilder system;
  system.Queue("research").Queue("product");
  Bind(&system, "ann", "research", pb::ROLE_ADMIN);
  Bind(&system, "bob", "product", pb::ROLE_ADMIN);
  Bind(&system, "root", "", pb::ROLE_ADMIN);
  pb::Event event;
  event.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("product");
  system.Do(event);
  event.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("research");
  system.Do(event);
  EXPECT_EQ(system.state.bindings(), (Bindings{{{"", false, "root"}, pb::ROLE_ADMIN},
                                               {{"product", false, "bob"}, pb::ROLE_ADMIN}}));
}

TEST(Bindings, AreWrittenWithTheConfigurationAndLoadedAgain) {
  SystemBuilder system;
  system.Queue("research");
  system.state.TakeChanges();
  Bind(&system, "ann", "research", pb::ROLE_ADMIN);
  EXPECT_TRUE(system.state.TakeChanges().configuration);
  const absl::StatusOr<State> loaded = State::Load(system.state.AllRows());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->bindings(), system.state.bindings());
  EXPECT_EQ(State::Difference(*loaded, system.state), "");
}

}  // namespace
}  // namespace muster
