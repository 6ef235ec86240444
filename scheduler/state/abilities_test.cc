#include "scheduler/state/abilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/config_files.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

pb::Inventory Announcing(Abilities abilities) {
  pb::Inventory inventory;
  testing::Announce(abilities, &inventory);
  return inventory;
}

TEST(Abilities, AJobNeedsWhatAnAgentThatDoesntKnowItWouldLeaveOut) {
  pb::JobSpec job;
  pb::TaskSpec* task = job.add_tasks();
  EXPECT_EQ(NeedsOf(job, *task), 0u);
  task->set_workdir("/data/here");
  EXPECT_EQ(NeedsOf(job, *task), 0u) << "it is there without anybody's help";
  job.add_secrets("HF_TOKEN");
  task->set_workdir_digest(std::string(64, 'a'));
  EXPECT_EQ(NeedsOf(job, *task), kGivesSecrets | kUnpacks);
  task->set_image("/data/images/debian");
  EXPECT_EQ(NeedsOf(job, *task), kGivesSecrets | kUnpacks | kEntersImages);
}

TEST(Abilities, AnInventoryThatSaysNothingAnnouncesNothing) {
  EXPECT_EQ(AbilitiesOf(pb::Inventory()), 0u);
  for (Abilities some = 0; some < 8; ++some) EXPECT_EQ(AbilitiesOf(Announcing(some)), some);
  pb::Inventory present;
  AnnounceAll(&present);
  EXPECT_EQ(AbilitiesOf(present), testing::kAllAbilities);
}

TEST(Abilities, WhatLacksIsToldWithTheRemedy) {
  const struct {
    Abilities has, needs;
    const char* said;
  } kCases[] = {
      {0, kGivesSecrets, "a muster-agent that doesn't know secrets: upgrade muster-agent there"},
      {0, kGivesSecrets | kUnpacks, "secrets and a workdir that comes along: upgrade muster-agent"},
      {kGivesSecrets, kEntersImages, "doesn't know images: upgrade muster-agent there"},
      {kGivesSecrets | kUnpacks, kEntersImages, "can't enter images: namespaces of users"},
  };
  for (const auto& c : kCases)
    EXPECT_THAT(WhyUnable(Announcing(c.has), c.needs), HasSubstr(c.said));
  EXPECT_EQ(WhyUnable(Announcing(7), 7), "");
  EXPECT_EQ(WhyUnable(Announcing(0), 0), "");
}

}  // namespace
}  // namespace muster
