#include "cli/storage.h"

#include <array>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/render/array.h"
#include "cli/render/format.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kKiB = 1024;

// -1: it is too much to be one.
int64_t Bytes(int64_t count, int64_t unit) {
  return unit == 0 || count > std::numeric_limits<int64_t>::max() / unit ? -1 : count * unit;
}

// The whole numbers behind the first word; false: they aren't just so many.
template <size_t kCount>
bool ReadNumbers(const std::vector<std::string>& words, std::array<int64_t, kCount>* numbers) {
  if (words.size() != kCount + 1) return false;
  for (size_t i = 0; i < kCount; ++i) {
    if (!absl::SimpleAtoi(words[i + 1], &(*numbers)[i]) || (*numbers)[i] < 0) return false;
  }
  return true;
}

bool ReadLine(const std::vector<std::string>& words, StorageTold* told) {
  std::array<int64_t, 3> three{};
  std::array<int64_t, 1> one{};
  if (words[0] == "files" && ReadNumbers(words, &one)) {
    told->files = Bytes(one[0], kKiB);
    return true;
  }
  if (words[0] != "room" && words[0] != "quota") return false;
  if (!ReadNumbers(words, &three)) return false;
  if (words[0] == "room") {
    told->total = Bytes(three[1], three[0]);
    told->free = Bytes(three[2], three[0]);
    return true;
  }
  const int64_t limit = three[2] > 0 ? three[2] : three[1];
  if (limit == 0) return true;  // it is counted, and nothing is refused
  told->quota_used = Bytes(three[0], kKiB);
  told->quota = Bytes(limit, kKiB);
  return true;
}

void AddLine(const std::string& what, const std::string& text, std::string* out) {
  constexpr size_t kWidth = 18;
  absl::StrAppend(out, what, std::string(what.size() < kWidth ? kWidth - what.size() : 1, ' '),
                  text, "\n");
}

}  // namespace

absl::StatusOr<StorageTold> ReadStorage(const std::string& output) {
  StorageTold told;
  bool some = false;
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty()) some |= ReadLine(words, &told);
  }
  if (some) return told;
  return absl::FailedPreconditionError(
      "nothing is told of the job's storage: its host, or the job's image, lacks stat and du of "
      "coreutils. Install them there, or ask by what it has: muster exec JOB -- df .");
}

pb::JobStorage StorageOf(const pb::Job& job, const StorageTold& told) {
  pb::JobStorage storage;
  storage.set_job(JobId(job));
  storage.set_owner(job.owner());
  storage.set_directory(job.directory());
  if (told.files >= 0) storage.set_files_bytes(told.files);
  if (told.free >= 0) storage.set_free_bytes(told.free);
  if (told.total >= 0) storage.set_total_bytes(told.total);
  if (told.quota_used >= 0) storage.set_quota_used_bytes(told.quota_used);
  if (told.quota >= 0) storage.set_quota_bytes(told.quota);
  return storage;
}

std::string RenderStorage(const pb::Job& job, const StorageTold& told) {
  const std::string unknown = "not told there";
  const auto of = [&](int64_t part, int64_t whole) -> std::string {
    return part < 0 || whole < 0 ? unknown
                                 : absl::StrCat(FormatSize(part), " of ", FormatSize(whole));
  };
  std::string out;
  AddLine("directory", Plain(job.directory()), &out);
  AddLine("files in it", told.files < 0 ? unknown : FormatSize(told.files), &out);
  AddLine("free there", of(told.free, told.total), &out);
  AddLine(absl::StrCat("quota of ", Plain(job.owner())), of(told.quota_used, told.quota), &out);
  return out;
}

}  // namespace muster
