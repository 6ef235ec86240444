#include "scheduler/administer.h"

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "scheduler/engine/reproducer.h"
#include "scheduler/settings.h"
#include "scheduler/store/admin.h"
#include "scheduler/store/store.h"

namespace muster {
namespace {

std::string StoreFile(const MusterdConfig& config, const std::string& file) {
  return file.empty() ? absl::StrCat(config.data_dir, "/", kStoreFile) : file;
}

// A folder of refused-plans: 0 if the same is decided and refused.
int ReplayRefused(const std::string& directory, const MusterdConfig& config) {
  const absl::StatusOr<RefusedAgain> again = ReplayRefusedPlan(directory, OptionsOf(config));
  if (!again.ok()) return Fail(std::string(again.status().message()));
  const std::string decided =
      absl::StrCat(directory, ": what is decided now, ", again->events, " events, is ");
  if (again->now.empty())
    return Fail(absl::StrCat(decided, "not refused. Then it was: ", again->then,
                             ". Another musterd, or other settings?"));
  if (again->now != again->then)
    return Fail(absl::StrCat(decided, "refused for another reason: ", again->now,
                             ". Then it was: ", again->then));
  std::printf("%srefused as it was then: %s\n", decided.c_str(), again->now.c_str());
  return 0;
}

}  // namespace

int Administer(const std::string& what, const std::string& file, const MusterdConfig& config) {
  if (config.data_dir.empty() && (file.empty() || what == "backup"))
    return Fail("no data_dir: give --data-dir DIR, or --config musterd.yaml with data_dir:");
  if (what == "backup") {
    if (absl::Status status = BackupStore(config.data_dir, file); !status.ok())
      return Fail(std::string(status.message()));
    std::printf(
        "%s: the store as of one commit, checked. To go on from it: put it into an empty data_dir "
        "as %s, then musterd --adopt-restored\n",
        file.c_str(), kStoreFile);
    return 0;
  }
  const std::string store = StoreFile(config, file);
  if (what == "replay" && std::filesystem::is_directory(store)) return ReplayRefused(store, config);
  if (what == "verify") {
    absl::StatusOr<StoreReport> report = VerifyStore(store);
    if (!report.ok()) return Fail(std::string(report.status().message()));
    std::printf(
        "%s: sound. Store %s, epoch %llu, commits %llu to %llu, %llu events, %llu rows%s\n",
        store.c_str(), report->store_id.c_str(), static_cast<unsigned long long>(report->epoch),
        static_cast<unsigned long long>(report->first_commit),
        static_cast<unsigned long long>(report->last_commit),
        static_cast<unsigned long long>(report->events),
        static_cast<unsigned long long>(report->rows),
        report->replayed
            ? ", which the journal makes again byte for byte"
            : "; the journal's beginning was trimmed, so the rows were not made again from it");
    return 0;
  }
  absl::StatusOr<ReplayReport> report = ReplayStore(store, OptionsOf(config));
  if (!report.ok()) return Fail(std::string(report.status().message()));
  std::printf(
      "%s: %llu commits with %llu events decided again: %llu plans, all the same bit for bit, and "
      "the same rows\n",
      store.c_str(), static_cast<unsigned long long>(report->commits),
      static_cast<unsigned long long>(report->events),
      static_cast<unsigned long long>(report->plans));
  return 0;
}

}  // namespace muster
