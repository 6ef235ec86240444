#include "common/spec/check_on.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/view.h"

namespace muster {

void CheckOn(const pb::JobSpec& spec, const SpecRules& rules) {
  if (spec.on().empty()) return;
  const auto emit = [&](const std::string& path, const std::string& message) {
    rules.emit(path, message, Document::Where::kValue);
  };
  constexpr size_t kShown = 64;
  uint64_t number = 0;
  if (!absl::SimpleAtoi(spec.on(), &number) || number == 0 || absl::StrCat(number) != spec.on()) {
    return emit("on", absl::StrCat("\"", View(spec.on().substr(0, kShown)),
                                   "\" is no job's number, such as 17 (muster dev list)"));
  }
  if (!spec.array().empty() || spec.sweep_size() > 0 || spec.has_independent_workers())
    return emit("on", "goes without array, sweep and independent_workers: submit a job for each");
  if (spec.tasks_size() != 1 || spec.tasks(0).workers().min() > 1 ||
      spec.tasks(0).workers().max() > 1)
    return emit("on",
                "is for a job of one task with one worker; what it asks for is what this one "
                "worker has of it");
}

}  // namespace muster
