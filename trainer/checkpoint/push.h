// The place of an export in an object store, s3://BUCKET/PREFIX. Objects can't be put in place
// together, so they follow an order: readers take for a model what has a config.json, which goes
// first of an earlier export, and comes last of a new one. Until then `export.unfinished` lies
// there, which says whose it is (docs/decisions/162-exports-are-pushed-by-the-trainer.md).
//
// Errors name the place and the remedy. Not thread-safe.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::trainer {

// In which exports are told to be under way.
inline constexpr char kUnfinishedExport[] = "export.unfinished";

// Without the slashes at its end.
std::string PlaceOf(std::string url);

// Says there that an export is on its way, and so shows early that objects can be listed and
// written. FAILED_PRECONDITION: other objects than an export's lie there.
absl::Status ClaimPlace(const std::string& place);

class PlacedExport {
 public:
  // Claims the place, and takes from an earlier export there what makes it look whole.
  static absl::StatusOr<PlacedExport> Begin(const std::string& place);
  // Whether an earlier one was there.
  bool replaces() const { return replaces_; }
  // ABORTED: somebody else has claimed the place since.
  absl::Status StillMine() const;
  // Once all others of the new one are there, of which `names` are below the place: removes weights
  // that an earlier one has left, and writes the index, if it isn't empty, and config.json.
  // ABORTED: as above; config.json isn't there then, unless the other's is.
  absl::Status Finish(const std::set<std::string>& names, const std::string& index,
                      const std::string& config);

 private:
  PlacedExport(std::string place, std::vector<std::string> before, bool replaces)
      : place_(std::move(place)), before_(std::move(before)), replaces_(replaces) {}
  std::string place_;
  std::vector<std::string> before_;  // names below it
  bool replaces_;
};

}  // namespace muster::trainer
