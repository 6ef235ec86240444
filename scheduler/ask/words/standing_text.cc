#include "scheduler/ask/words/standing_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {
namespace {

bool IsGuaranteedToAQueue(const State& state, const std::string& flavour) {
  const auto& nodes = state.queues().nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    const auto quota = node.spec.quota().find(flavour);
    return quota != node.spec.quota().end() && quota->second.guarantee_milli() > 0;
  });
}

}  // namespace

std::string BorrowedText(const State& state, const pb::TaskSpec& spec, const Standing& standing,
                         int64_t start_ns, int64_t now_ns) {
  if (standing.guaranteed) return "";
  const auto& types = spec.resources().gpu_types();
  std::vector<std::string> flavours(types.begin(), types.end());
  if (spec.resources().gpus_milli() == 0) flavours = {"cpu"};
  if (std::none_of(flavours.begin(), flavours.end(), [&](const std::string& flavour) {
        return IsGuaranteedToAQueue(state, flavour);
      }))
    return "";
  const char* kFor = " for work within a guarantee";
  const int64_t left_ns =
      start_ns == 0 ? standing.left_alone_ns : start_ns + standing.left_alone_ns - now_ns;
  if (standing.left_alone_ns == 0 || left_ns <= 0)
    return absl::StrCat("borrowed: may be stopped at once", kFor);
  return absl::StrCat("borrowed: may be stopped", kFor, ", but not in the ",
                      start_ns == 0 ? "first " : "next ",
                      FormatDuration(std::max(kSecond, left_ns / kSecond * kSecond)));
}

}  // namespace muster
