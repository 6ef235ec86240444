#include "common/spec/check_predecessors.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/view.h"

namespace muster {
namespace {

constexpr size_t kMaxIdBytes = 64;

bool AllOf(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

// 17, 17_3, or a uid in place of 17.
bool IsJob(std::string_view id) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr size_t kUidChars = 32;
  if (id.size() > kMaxIdBytes) return false;
  const size_t bar = id.find('_');
  const std::string_view job = id.substr(0, bar);
  const bool whole =
      AllOf(job, kDigits) || (job.size() == kUidChars && AllOf(job, "0123456789abcdef"));
  return whole && (bar == std::string_view::npos || AllOf(id.substr(bar + 1), kDigits));
}

}  // namespace

void CheckPredecessors(const pb::JobSpec& spec, const SpecRules& rules) {
  const auto emit = [&](const std::string& path, const std::string& message) {
    rules.emit(path, message, Document::Where::kValue);
  };
  if (spec.after_size() + spec.after_any_size() > kMostPredecessors) {
    return emit(spec.after_size() > 0 ? "after" : "after_any",
                absl::StrCat(spec.after_size() + spec.after_any_size(), " jobs; at most ",
                             kMostPredecessors,
                             ", with after_any. All members of an array count as one: its number"));
  }
  std::set<std::string> seen;
  const auto check = [&](const auto& ids, std::string_view field) {
    for (int i = 0; i < ids.size(); ++i) {
      const std::string at = IndexPath(field, static_cast<size_t>(i));
      const std::string shown = absl::StrCat("\"", View(ids[i].substr(0, kMaxIdBytes)), "\"");
      if (!IsJob(ids[i])) {
        emit(at, absl::StrCat(shown,
                              " names no job; write its number, such as 17, or 17_3 of an array's "
                              "member (muster jobs)"));
      } else if (!seen.insert(ids[i]).second) {
        emit(at, absl::StrCat(shown, " is listed twice"));
      }
    }
  };
  check(spec.after(), "after");
  check(spec.after_any(), "after_any");
}

}  // namespace muster
