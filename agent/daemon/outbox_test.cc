#include "agent/daemon/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;

v1::AgentMessage Beat(uint64_t sequence) {
  v1::AgentMessage message;
  message.mutable_heartbeat()->set_sequence(sequence);
  return message;
}

v1::AgentMessage Step(const std::string& job, int64_t step) {
  v1::AgentMessage message;
  message.mutable_progress()->mutable_key()->set_job_uid(job);
  message.mutable_progress()->mutable_progress()->set_step(step);
  return message;
}

v1::AgentMessage Times(const std::string& job, int64_t step) {
  v1::AgentMessage message;
  message.mutable_progress()->mutable_key()->set_job_uid(job);
  message.mutable_progress()->add_times()->set_step(step);
  return message;
}

v1::AgentMessage Saved(const std::string& job, uint64_t sequence) {
  v1::AgentMessage message;
  message.mutable_checkpoint()->mutable_key()->set_job_uid(job);
  message.mutable_checkpoint()->set_sequence(sequence);
  return message;
}

std::string Text(const v1::AgentMessage& message) {
  if (message.has_heartbeat()) return absl::StrCat("beat ", message.heartbeat().sequence());
  if (message.has_checkpoint()) {
    return absl::StrCat(message.checkpoint().key().job_uid(), " saved ",
                        message.checkpoint().sequence());
  }
  const std::string& job = message.progress().key().job_uid();
  if (message.progress().has_progress())
    return absl::StrCat(job, " step ", message.progress().progress().step());
  return absl::StrCat(job, " times ", message.progress().times(0).step());
}

std::vector<std::string> TakeAll(Outbox* outbox) {
  std::vector<std::string> texts;
  while (!outbox->empty()) texts.push_back(Text(outbox->Take()));
  return texts;
}

TEST(Outbox, HeartbeatsGoFirstAndTheRestInOrder) {
  Outbox outbox;
  outbox.Put(Saved("a", 1));
  outbox.Put(Beat(1));
  outbox.Put(Saved("b", 1));
  outbox.Put(Beat(2));
  outbox.Put(Saved("a", 2));
  EXPECT_THAT(TakeAll(&outbox),
              ElementsAre("beat 1", "beat 2", "a saved 1", "b saved 1", "a saved 2"));
}

TEST(Outbox, ProgressTakesThePlaceOfWhatWaitsOfTheSameAttempt) {
  Outbox outbox;
  for (int64_t step = 1; step <= 1000; ++step) {
    outbox.Put(Step("a", step));
    outbox.Put(Times("a", step));
    if (step == 1) outbox.Put(Saved("a", 1));
    if (step == 1) outbox.Put(Step("b", 7));
  }
  EXPECT_EQ(Text(outbox.Take()), "a step 1000");
  outbox.Put(Step("a", 1001));  // what was taken is on its way
  EXPECT_THAT(TakeAll(&outbox),
              ElementsAre("a times 1000", "a saved 1", "b step 7", "a step 1001"));
}

TEST(Outbox, SaysHowManyBytesWait) {
  Outbox outbox;
  int64_t waits = 0, taken = 0;
  for (const int64_t step : {1, 1'000'000, 2}) {
    waits += outbox.Put(Step("a", step));
    waits += outbox.Put(Beat(static_cast<uint64_t>(step)));
  }
  while (!outbox.empty()) taken += static_cast<int64_t>(outbox.Take().ByteSizeLong());
  EXPECT_EQ(waits, taken);
  outbox.Put(Step("a", 1));
  outbox.Clear();
  EXPECT_TRUE(outbox.empty());
  outbox.Put(Step("a", 2));
  EXPECT_THAT(TakeAll(&outbox), ElementsAre("a step 2"));
}

}  // namespace
}  // namespace muster::agent
