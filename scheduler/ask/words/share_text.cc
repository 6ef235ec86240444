#include "scheduler/ask/words/share_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {

std::string ShareText(const JobRow& job, const pb::QueueUse& use) {
  const int64_t borrowed_milli = std::max<int64_t>(0, use.entitled_milli() - use.guarantee_milli());
  return absl::StrCat(
      job.spec->queue(), " is entitled to ", FormatMilli(use.entitled_milli()), " ", use.flavour(),
      " now (guarantee ", FormatMilli(use.guarantee_milli()),
      borrowed_milli > 0 ? absl::StrCat(", borrowed ", FormatMilli(borrowed_milli)) : "",
      "), and uses ", FormatMilli(use.used_milli()));
}

std::string BeyondText(const JobRow& job, const pb::QueueUse& use) {
  return absl::StrCat(job.spec->queue(), " uses ", FormatMilli(use.used_milli()), " of the ",
                      FormatMilli(use.entitled_milli()), " ", use.flavour(),
                      " that it is entitled to, so others of its own jobs run in this one's place");
}

}  // namespace muster
