#include "common/spec/check_schedule.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/cron.h"
#include "common/spec/members.h"
#include "common/spec/when.h"

namespace muster {
namespace {

constexpr size_t kShown = 64;
constexpr int32_t kMostMembersOnTime = 1000;  // each time makes as many jobs

// "schedule", where the file has the line alone.
std::string CronPath(const pb::Schedule& schedule) {
  const bool alone = schedule.zone().empty() && schedule.overlap() == pb::OVERLAP_UNSPECIFIED;
  return alone ? "schedule" : "schedule.cron";
}

}  // namespace

void CheckSchedule(const pb::JobSpec& spec, const SpecRules& rules) {
  const auto emit = [&](const std::string& path, const std::string& message) {
    rules.emit(path, message, Document::Where::kValue);
  };
  if (!spec.not_before().empty() && !ParseInstantNs(spec.not_before()).has_value()) {
    emit("not_before", absl::StrCat("\"", spec.not_before().substr(0, kShown),
                                    "\" is no time; write 2026-12-24T03:00:00Z, or with an offset "
                                    "from UTC such as +01:00 in place of Z"));
  }
  const char* waits = spec.has_schedule() ? "schedule" : "not_before";
  if (!spec.on().empty() && (spec.has_schedule() || !spec.not_before().empty()))
    emit(waits, "goes without on: the job on whose devices it would run may have ended by then");
  if (!spec.has_schedule() || !rules.sound("schedule")) return;
  const pb::Schedule& schedule = spec.schedule();
  if (spec.after_size() + spec.after_any_size() > 0)
    emit("schedule", "goes without after and after_any, which could hold for its first time only");
  const absl::StatusOr<Cron> cron = Cron::Parse(schedule.cron());
  const bool known = FindTimeZone(schedule.zone()).has_value();
  if (!cron.ok()) emit(CronPath(schedule), std::string(cron.status().message()));
  if (!known)
    emit("schedule.zone",
         absl::StrCat("no time zone \"", schedule.zone().substr(0, kShown),
                      "\" is known here; write a name such as Europe/Berlin (they are in "
                      "/usr/share/zoneinfo, of the package tzdata)"));
  if (cron.ok() && known && !FirstTimeNs(spec, 0).has_value())
    emit(CronPath(schedule), absl::StrCat("\"", schedule.cron().substr(0, kShown),
                                          "\" never comes: no such month has such a day"));
  if (!pb::Overlap_IsValid(schedule.overlap())) emit("schedule.overlap", "must be skip or allow");
  if (MembersOf(spec) > kMostMembersOnTime)
    emit("schedule", absl::StrCat("an array with a schedule has at most ", kMostMembersOnTime,
                                  " members; this one has ", MembersOf(spec)));
}

}  // namespace muster
