// What the checker says of devices that several attempts have, of which the store that counts knows
// none: the original of a cloned store has placed them.
#include "sim/faults/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::sim::faults {
namespace {

constexpr const char* kHost = "c/h00";
constexpr const char* kBoot = "boot";

// Jobs with one task and one attempt each, as the original of a store commits them.
class Clone {
 public:
  // Without `on` it is placed on devices of its own.
  void Places(uint64_t number, int64_t gpus_milli, const std::string& on = "") {
    pb::JobRecord job;
    job.set_number(number);
    job.set_uid(Uid(number));
    job.mutable_spec()->set_on(on);
    pb::TaskSpec* task = job.mutable_spec()->add_tasks();
    task->set_name("main");
    task->mutable_resources()->set_gpus_milli(gpus_milli);
    pb::AttemptRecord* attempt = job.add_tasks()->add_attempts();
    attempt->set_number(1);
    if (!on.empty()) attempt->set_holder_attempt(1);
    const std::string bytes = job.SerializeAsString();
    rows_[{"job", absl::StrCat(number)}] = bytes;
    Transaction transaction;
    transaction.rows.push_back({"job", absl::StrCat(number), bytes});
    checker_.OnCommitAlone(transaction, rows_);
    specs_[number] = *task;
  }
  void Starts(uint64_t number, const std::vector<int32_t>& devices) {
    pb::Prepare prepare;
    *prepare.mutable_key() = Key(number);
    *prepare.mutable_task() = specs_.at(number);
    prepare.mutable_here()->mutable_devices()->Add(devices.begin(), devices.end());
    checker_.OnStart(0, kHost, kBoot, kBoot, prepare);
  }
  void Leaves(uint64_t number) { checker_.OnProcessesGone(kHost, Key(number)); }
  const std::vector<std::string>& violations() const { return checker_.violations(); }

 private:
  static std::string Uid(uint64_t number) { return absl::StrCat("uid", number); }
  static pb::AttemptKey Key(uint64_t number) {
    pb::AttemptKey key;
    key.set_job_uid(Uid(number));
    key.set_task("main");
    key.set_attempt(1);
    return key;
  }

  Counters counters_;
  Checker checker_{&counters_};
  Rows rows_;
  std::map<uint64_t, pb::TaskSpec> specs_;
};

TEST(Checks, ADeviceHasOneAttemptButForThoseOnTheirHoldersDevices) {
  struct Case {
    const char* what;
    std::vector<int32_t> devices;  // of job 3, which wants half of one
    std::string on;
    bool holder_left = false;
    std::string says;  // empty: nothing
  };
  for (const Case& c : std::vector<Case>{
           {"beside another's half of its holder's", {0}, "1", false, ""},
           {"another one of its holder's", {1}, "1", false, ""},
           {"one that another has whole",
            {2},
            "1",
            false,
            "S3 device 2 of what uid1/main/1 has is held twice"},
           {"one that its holder doesn't have",
            {3},
            "1",
            false,
            "S3 device 3 of what uid1/main/1 has is held twice"},
           {"free, on its own", {3}, "", false, ""},
           {"a holder's, on its own", {1}, "", false, "S3 device 1 is held twice"},
           {"what its holder had is free", {1}, "", true, ""},
           {"what outlives its holder has its half only", {0}, "", true, ""},
           {"what outlives its holder is still there", {2}, "", true, "S3 device 2 is held twice"},
       }) {
    SCOPED_TRACE(c.what);
    Clone clone;
    clone.Places(1, 3000);
    clone.Places(2, 500, "1");
    clone.Places(4, 1000, "1");
    clone.Places(3, 500, c.on);
    clone.Starts(1, {0, 1, 2});
    clone.Starts(2, {0});
    clone.Starts(4, {2});
    ASSERT_THAT(clone.violations(), ::testing::IsEmpty());
    if (c.holder_left) clone.Leaves(1);
    clone.Starts(3, c.devices);
    if (c.says.empty()) {
      EXPECT_THAT(clone.violations(), ::testing::IsEmpty());
    } else {
      EXPECT_THAT(clone.violations(), ::testing::ElementsAre(::testing::HasSubstr(c.says)));
    }
  }
}

}  // namespace
}  // namespace muster::sim::faults
