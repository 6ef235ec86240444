#include "trainer/checkpoint/push.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/files.h"

namespace muster::trainer {
namespace {

constexpr char kConfig[] = "/config.json", kIndex[] = "/model.safetensors.index.json";

// Who writes: no two processes are the same, though containers may share host names and numbers.
std::string Writer() {
  static const uint64_t token = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  std::string text;
  for (const auto& [name, what] :
       {std::pair("MUSTER_JOB", "job "), std::pair("MUSTER_TASK", "task "),
        std::pair("MUSTER_ATTEMPT", "attempt ")}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      absl::StrAppend(&text, what, value, ", ");
  }
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return absl::StrCat(text, "process ", ::getpid(), " of host ", host, ", ",
                      absl::Hex(token, absl::kZeroPad16));
}

std::string ClaimText() {
  return absl::StrCat("An export of muster-trainer goes here, and isn't whole yet.\n", Writer(),
                      "\n");
}

absl::Status Unusable(const std::string& place, const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat(
      place, " can't be listed and written: ", std::string(status.message()),
      "; see that the bucket is there, that AWS_ENDPOINT_URL and AWS_REGION are its, and that the "
      "credentials (the machine's role, ~/.aws, or the file that AWS_SHARED_CREDENTIALS_FILE "
      "names) may list, read, write and remove objects in it"));
}

// Names of the objects below the place.
absl::StatusOr<std::vector<std::string>> NamesBelow(const std::string& place) {
  absl::StatusOr<std::vector<std::string>> paths = ObjectsBelow(place);
  if (!paths.ok()) return paths.status();
  for (std::string& path : *paths) path.erase(0, place.size() + 1);
  return paths;
}

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether an object of this name is an export's weights, which no file of a user's is called.
bool IsWeights(const std::string& name) {
  if (name == "model.safetensors" || name == "adapter/adapter_model.safetensors") return true;
  // One of several: each # stands for a digit.
  constexpr std::string_view kOneOfSeveral = "model-#####-of-#####.safetensors";
  return std::equal(name.begin(), name.end(), kOneOfSeveral.begin(), kOneOfSeveral.end(),
                    [](char has, char wanted) {
                      return wanted == '#' ? absl::ascii_isdigit(static_cast<unsigned char>(has))
                                           : has == wanted;
                    });
}

// What a mark says, or that there is none: NOT_FOUND.
absl::StatusOr<std::string> ClaimAt(const std::string& place) {
  absl::StatusOr<std::string> claimed = ReadFile(absl::StrCat(place, "/", kUnfinishedExport));
  if (!claimed.ok() && !absl::IsNotFound(claimed.status()))
    return Unusable(place, claimed.status());
  return claimed;
}

// OK where `claimed` is this process's.
absl::Status Judge(const std::string& place, const absl::StatusOr<std::string>& claimed) {
  if (!claimed.ok() && !absl::IsNotFound(claimed.status())) return claimed.status();
  if (claimed.ok() && *claimed == ClaimText()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      place, ": somebody else has begun an export there meanwhile, and ",
      claimed.ok()
          ? absl::StrCat("goes on with it: ", absl::StripAsciiWhitespace(claimed->substr(0, 300)))
          : "has ended it already",
      "; start it again, or give each export a prefix of its own"));
}

// Claims it, and gives the names of what lay there before.
absl::StatusOr<std::vector<std::string>> Claim(const std::string& place) {
  absl::StatusOr<std::vector<std::string>> names = NamesBelow(place);
  if (!names.ok()) return Unusable(place, names.status());
  if (!names->empty() && !Has(*names, "config.json") && !Has(*names, kUnfinishedExport))
    return absl::FailedPreconditionError(
        absl::StrCat(place, " has objects and is no earlier export, such as ", names->front(),
                     "; name another prefix"));
  if (absl::Status s = WriteFileDurably(absl::StrCat(place, "/", kUnfinishedExport), ClaimText());
      !s.ok())
    return Unusable(place, s);
  return names;
}

}  // namespace

std::string PlaceOf(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

absl::Status ClaimPlace(const std::string& place) { return Claim(place).status(); }

absl::StatusOr<PlacedExport> PlacedExport::Begin(const std::string& place) {
  absl::StatusOr<std::vector<std::string>> names = Claim(place);
  if (!names.ok()) return names.status();
  const bool replaces = Has(*names, "config.json");
  for (const char* name : {kConfig, kIndex}) {
    if (absl::Status s = RemoveFile(place + name); !s.ok()) return Unusable(place, s);
  }
  return PlacedExport(place, *std::move(names), replaces);
}

absl::Status PlacedExport::StillMine() const { return Judge(place_, ClaimAt(place_)); }

absl::Status PlacedExport::Finish(const std::set<std::string>& names, const std::string& index,
                                  const std::string& config) {
  if (absl::Status s = StillMine(); !s.ok()) return s;
  for (const std::string& name : before_) {
    if (!IsWeights(name) || names.contains(name)) continue;
    if (absl::Status s = RemoveFile(absl::StrCat(place_, "/", name)); !s.ok())
      return Unusable(place_, s);
  }
  if (!index.empty()) {
    if (absl::Status s = WriteFileDurably(place_ + kIndex, index); !s.ok()) return s;
  }
  if (absl::Status s = WriteFileDurably(place_ + kConfig, config); !s.ok()) return s;
  // Who has claimed it since that look is about to write other weights. Who has ended since has
  // written a config.json of its own, which may be the one that is there.
  const absl::StatusOr<std::string> claimed = ClaimAt(place_);
  if (absl::Status s = Judge(place_, claimed); !s.ok()) {
    if (claimed.ok()) RemoveFile(place_ + kConfig).IgnoreError();
    return s;
  }
  const std::string claim = absl::StrCat(place_, "/", kUnfinishedExport);
  if (absl::Status s = RemoveFile(claim); !s.ok())
    std::fprintf(stderr, "note: the export is whole, but %s can't be removed: %s; remove it\n",
                 claim.c_str(), std::string(s.message()).c_str());
  return absl::OkStatus();
}

}  // namespace muster::trainer
