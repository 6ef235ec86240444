#include "agent/host/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/files.h"

namespace muster::agent {
namespace {

constexpr int kMostLinks = 40;  // as the kernel has it

// In this machine's memory or on its disks. Whatever isn't listed may be served by others.
constexpr std::string_view kLocal[] = {
    "bcachefs", "btrfs", "erofs",  "exfat", "ext2",    "ext3",  "ext4",     "f2fs",
    "iso9660",  "jfs",   "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs",
    "squashfs", "tmpfs", "udf",    "vfat",  "xfs",     "zfs"};

bool IsLocal(std::string_view type) {
  return std::find(std::begin(kLocal), std::end(kLocal), type) != std::end(kLocal);
}

// Where nobody's files are: systemd has an autofs there.
bool IsOfTheKernel(const std::string& point) {
  return absl::StartsWith(point, "/proc/") || absl::StartsWith(point, "/sys/") ||
         absl::StartsWith(point, "/dev/") || point == "/proc" || point == "/sys" || point == "/dev";
}

// Blanks and backslashes stand there as \040 and the like.
std::string Unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t k) {
      return i + k < text.size() && text[i + k] >= '0' && text[i + k] < '8' ? text[i + k] - '0'
                                                                            : -1;
    };
    if (text[i] == '\\' && digit(1) >= 0 && digit(2) >= 0 && digit(3) >= 0) {
      out += static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct MountLine {
  std::string point, type, source;
  bool read_only = false;
};

std::vector<MountLine> ReadTable(const std::string& table) {
  std::vector<MountLine> mounts;
  const absl::StatusOr<std::string> text = ReadFile(table);
  if (!text.ok()) return mounts;
  const auto read_only = [](const std::string& options) {
    return absl::StartsWith(absl::StrCat(options, ","), "ro,");
  };
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    // "36 35 98:0 /root /mount/point options optional… - type source options"
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 3) continue;
    mounts.push_back({Unescaped(words[4]), dash[1], Unescaped(dash[2]),
                      read_only(words[5]) || (words.end() - dash > 3 && read_only(dash[3]))});
  }
  return mounts;
}

}  // namespace

std::vector<std::string> ReadOnlyMounts(const std::string& table) {
  std::map<std::string, bool> last;  // of a mount point, which lies over the others
  for (const MountLine& mount : ReadTable(table)) last[mount.point] = mount.read_only;
  std::vector<std::string> points;
  for (const auto& [point, read_only] : last) {
    if (read_only) points.push_back(point);
  }
  return points;
}

Mounts::Mounts(const std::string& table)
    : table_(table), changes_(::open(table.c_str(), O_RDONLY | O_CLOEXEC)) {
  Read();
}

void Mounts::Read() {
  served_.clear();
  for (const MountLine& mount : ReadTable(table_)) {
    if (IsOfTheKernel(mount.point)) continue;
    // The last one of a mount point lies over the others.
    if (IsLocal(mount.type)) {
      served_.erase(mount.point);
    } else {
      served_[mount.point] = absl::StrCat(mount.point, " (", mount.type, " of ", mount.source, ")");
    }
  }
}

std::string Mounts::ServedByOthers(const std::string& path) {
  pollfd changed{changes_.get(), POLLPRI, 0};
  if (::poll(&changed, 1, 0) > 0 && (changed.revents & POLLPRI) != 0) Read();
  if (served_.empty()) return "";
  if (const auto root = served_.find("/"); root != served_.end()) return root->second;
  // From the root on, name by name: each is looked at only once everything above it is known to be
  // local.
  std::string at, rest = path;
  for (int links = 0; !rest.empty();) {
    const size_t slash = rest.find('/');
    const std::string name = rest.substr(0, slash);
    rest.erase(0, slash == std::string::npos ? rest.size() : slash + 1);
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      at.erase(std::min(at.size(), at.rfind('/')));
      continue;
    }
    const std::string next = absl::StrCat(at, "/", name);
    if (const auto found = served_.find(next); found != served_.end()) return found->second;
    char target[PATH_MAX];
    const ssize_t length = ::readlink(next.c_str(), target, sizeof target);
    if (length < 0 && errno != EINVAL) return "";  // nothing is there
    if (length < 0) {
      at = next;
      continue;
    }
    if (++links > kMostLinks) return "";
    if (target[0] == '/') at.clear();
    rest = absl::StrCat(std::string(target, static_cast<size_t>(length)), "/", rest);
  }
  return "";
}

}  // namespace muster::agent
