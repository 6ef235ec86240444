#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/pki/seal.h"
#include "scheduler/trust/office.h"

namespace muster {
namespace {

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("master_key: ", path, ": ", what));
}

}  // namespace

absl::StatusOr<std::string> ReadMasterKey(const std::string& path, const std::string& data_dir,
                                          bool make) {
  std::error_code error;
  const std::string file = std::filesystem::weakly_canonical(path, error).string();
  const std::string folder = std::filesystem::weakly_canonical(data_dir, error).string();
  if (absl::StartsWith(file, folder + "/"))
    return Wrong(path,
                 "lies in data_dir, where a copy of the store would carry it; name a file "
                 "somewhere else");
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (!make) {
      return Wrong(path,
                   "isn't there, and the authority's keys in the store can't be read without it. "
                   "Put the copy there that you keep");
    }
    std::string key = NewSealKey();
    if (absl::Status written =
            WriteFileDurably(path, absl::StrCat(absl::BytesToHexString(key), "\n"), 0400);
        !written.ok())
      return Wrong(path, written.message());
    return key;
  }
  if ((info.st_mode & 077) != 0 || (info.st_uid != 0 && info.st_uid != geteuid()))
    return Wrong(path,
                 "others may read it, or it is another's; chmod 0400 it, and chown it to "
                 "whoever runs musterd");
  const absl::StatusOr<std::string> text = ReadFile(path, 4096);
  if (!text.ok()) return Wrong(path, text.status().message());
  const std::string hex(absl::StripAsciiWhitespace(*text));
  if (hex.size() != 2 * kSealKeyBytes ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos)
    return Wrong(path, "must be 64 hexadecimal digits, as musterd makes it");
  return absl::HexStringToBytes(hex);
}

}  // namespace muster
