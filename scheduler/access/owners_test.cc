// Whether owners of jobs may still submit.
#include "scheduler/access/owners.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "scheduler/access/users.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::SystemBuilder;

class SetClock : public Clock {
 public:
  int64_t WallNs() override { return now_ns; }
  int64_t MonotonicNs() override { return now_ns; }
  int64_t BootNs() override { return now_ns; }
  std::atomic<int64_t> now_ns = 1'000'000'000'000;
};

class OwnersTest : public ::testing::Test {
 protected:
  void Bind(const std::string& user, const std::string& group, bool revoked = false) {
    pb::Event event;
    event.mutable_binding_changed()->set_revoked(revoked);
    pb::Binding* binding = event.mutable_binding_changed()->mutable_binding();
    binding->set_user(user);
    binding->set_group(group);
    binding->set_queue("research");
    binding->set_role(pb::ROLE_SUBMITTER);
    system_.Do(event);
  }
  // Once it is known.
  bool MaySubmit(const std::string& owner) {
    for (int tries = 0; tries < 10'000; ++tries) {
      if (const std::optional<bool> may = owners_.MaySubmit(system_.state, owner, "research"))
        return *may;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << owner << " is never known";
    return false;
  }

  SystemBuilder system_ = [] {
    SystemBuilder system;
    system.Queue("research");
    return system;
  }();
  SetClock clock_;
  std::atomic<int> asked_ = 0;
  std::atomic<bool> in_group_ = true;
  Owners owners_{[this](const std::string& name) -> std::shared_ptr<const Principal> {
                   ++asked_;
                   if (name == "gone") return nullptr;
                   Principal who{20'000, name, {}, name == "root"};
                   if (in_group_) who.groups.emplace_back("nlp");
                   return std::make_shared<const Principal>(who);
                 },
                 &clock_};
};

TEST_F(OwnersTest, HaveTheRightThatRolesGiveNow) {
  EXPECT_FALSE(MaySubmit("ann"));
  EXPECT_TRUE(MaySubmit("root")) << "may do everything";
  Bind("ann", "");
  EXPECT_TRUE(MaySubmit("ann"));
  EXPECT_FALSE(MaySubmit("bob"));
  Bind("ann", "", /*revoked=*/true);
  EXPECT_FALSE(MaySubmit("ann"));
  Bind("gone", "");
  EXPECT_FALSE(MaySubmit("gone")) << "nobody has that name any more";
}

TEST_F(OwnersTest, AreLookedUpOnceInAWhileAndWaitForNobody) {
  Bind("", "nlp");
  EXPECT_EQ(owners_.MaySubmit(system_.state, "ann", "research"), std::nullopt);
  EXPECT_TRUE(MaySubmit("ann")) << "by her group";
  in_group_ = false;
  EXPECT_TRUE(MaySubmit("ann"));
  EXPECT_EQ(asked_.load(), 1);
  clock_.now_ns += kUserKeptNs;
  EXPECT_FALSE(MaySubmit("ann"));
  EXPECT_EQ(asked_.load(), 2);
}

}  // namespace
}  // namespace muster
