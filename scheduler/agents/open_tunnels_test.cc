#include "scheduler/agents/open_tunnels.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

class User : public TunnelUserEnd {
 public:
  void Pass(pb::TunnelOutput) override {}
  void ReadOn() override {}
  void Close(const absl::Status&) override {}
  void Joined(std::shared_ptr<TunnelHostEnd>) override {}
};

TEST(OpenTunnels, AreJoinedOnceAndByTheirHostOnly) {
  OpenTunnels tunnels;
  const auto user = std::make_shared<User>();
  const absl::StatusOr<std::string> name =
      tunnels.Add({.job = 1, .command = true, .cluster = "lab", .host = "h1"}, user);
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->size(), 32u);
  EXPECT_EQ(tunnels.Join(*name, "lab", "h2"), nullptr) << "another host's certificate";
  EXPECT_EQ(tunnels.Join(*name, "other", "h1"), nullptr);
  EXPECT_EQ(tunnels.Join(std::string(32, '0'), "lab", "h1"), nullptr);
  EXPECT_EQ(tunnels.Join(*name, "lab", "h1"), user);
  EXPECT_EQ(tunnels.Join(*name, "lab", "h1"), nullptr) << "joined already";
  tunnels.Remove(*name);
  EXPECT_EQ(tunnels.size(), 0u);
}

TEST(OpenTunnels, OneWhoseUserIsGoneIsNotJoined) {
  OpenTunnels tunnels;
  auto user = std::make_shared<User>();
  const absl::StatusOr<std::string> name = tunnels.Add({.job = 1}, user);
  user.reset();
  EXPECT_EQ(tunnels.Join(*name, "", ""), nullptr);
}

TEST(OpenTunnels, SoManyAtOnceOfAJobOfAHostAndOfAll) {
  OpenTunnels tunnels;
  const auto user = std::make_shared<User>();
  std::vector<std::string> names;
  const auto add = [&](uint64_t job, bool command, const std::string& host) {
    const absl::StatusOr<std::string> name =
        tunnels.Add({.job = job, .command = command, .cluster = "lab", .host = host}, user);
    if (name.ok()) names.push_back(*name);
    return name.status();
  };
  for (int i = 0; i < OpenTunnels::kCommandsOfJob; ++i) ASSERT_TRUE(add(1, true, "h1").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(add(1, true, "h2"))) << "of one job";
  EXPECT_TRUE(add(2, true, "h2").ok());
  EXPECT_TRUE(add(1, false, "h1").ok()) << "connections count apart";
  for (int job = 100; add(job, true, "h1").ok(); ++job) ASSERT_LT(job, 1000);
  EXPECT_EQ(names.size(), size_t{OpenTunnels::kOfHost} + 1) << "of one host";
  for (int job = 1000; add(job, true, absl::StrCat("g", job)).ok(); ++job) ASSERT_LT(job, 9000);
  EXPECT_EQ(tunnels.size(), size_t{OpenTunnels::kOfAll});
  tunnels.Remove(names[0]);
  EXPECT_TRUE(add(1, true, "h9").ok()) << "one has ended";
}

}  // namespace
}  // namespace muster
