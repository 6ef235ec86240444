#include "scheduler/access/users.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace muster {
namespace {

constexpr size_t kNamesBytes = 16 << 10, kMostNamesBytes = 16 << 20;  // of a group: all its members
constexpr size_t kUsersKept = 4'096;
constexpr int kGroups = 1'024, kMostGroups = 1 << 17;
constexpr std::string_view kReservedNames[] = {"root", "nobody", "musterd"};

struct Account {
  uint32_t uid = 0, gid = 0;
  std::string name;
};

std::optional<Account> ToAccount(const passwd* found) {
  if (found == nullptr || found->pw_name == nullptr || found->pw_name[0] == '\0')
    return std::nullopt;
  return Account{found->pw_uid, found->pw_gid, found->pw_name};
}

// There is none of that number or name, and nothing went wrong.
bool IsNone(int code) { return code == ENOENT || code == ESRCH; }

// *error: why it isn't known, 0 where it is known that there is none.
std::optional<Account> AccountOf(uint32_t uid, int* error) {
  std::vector<char> buffer(kNamesBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int code = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  *error = IsNone(code) ? 0 : code;
  return code == 0 ? ToAccount(found) : std::nullopt;
}

// *error as above.
std::optional<Account> AccountNamed(const std::string& name, int* error = nullptr) {
  std::vector<char> buffer(kNamesBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int code = getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (error != nullptr) *error = IsNone(code) ? 0 : code;
  return code == 0 ? ToAccount(found) : std::nullopt;
}

// "": there is none of that number.
std::string GroupName(gid_t id, std::vector<char>* buffer) {
  group entry{};
  group* found = nullptr;
  int code = 0;
  while ((code = getgrgid_r(id, &entry, buffer->data(), buffer->size(), &found)) == ERANGE &&
         buffer->size() < kMostNamesBytes)
    buffer->resize(2 * buffer->size());
  if (code != 0 && !IsNone(code))
    LogWarn("the name of a group can't be looked up", {{"gid", id}, {"errno", code}});
  return code == 0 && found != nullptr ? found->gr_name : "";
}

std::vector<std::string> GroupsOf(const Account& account) {
  std::vector<gid_t> ids(kGroups);
  int count = kGroups;
  while (getgrouplist(account.name.c_str(), account.gid, ids.data(), &count) < 0) {
    count = std::max<int>(count, 2 * static_cast<int>(ids.size()));
    if (count > kMostGroups) {
      LogWarn("too many groups of a user", {{"user", account.name}});
      return {};
    }
    ids.resize(static_cast<size_t>(count));
  }
  ids.resize(static_cast<size_t>(count));
  std::vector<char> buffer(kNamesBytes);
  std::vector<std::string> groups;
  for (const gid_t id : ids) {
    if (std::string name = GroupName(id, &buffer); !name.empty()) groups.push_back(std::move(name));
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

}  // namespace

Users::Users(std::vector<ListedUser> listed, uint32_t own_uid, bool single_user, Clock* clock)
    : listed_(std::move(listed)), own_uid_(own_uid), single_user_(single_user), clock_(clock) {}

Principal Users::LookUp(uint32_t uid, int* error) const {
  Principal who;
  *error = 0;
  who.uid = uid;
  if (single_user_ && uid != own_uid_) return who;
  who.trusted = uid == 0 || uid == own_uid_;
  for (const ListedUser& user : listed_) {
    if (user.uid != uid) continue;
    who.user = user.name;
    who.groups = user.groups;
    return who;
  }
  const bool ordinary = uid >= kFirstOrdinaryUid && uid != kOverflowUid;
  if (!ordinary && !who.trusted) return who;
  if (const std::optional<Account> account = AccountOf(uid, error); account.has_value()) {
    const bool taken = std::any_of(listed_.begin(), listed_.end(), [&](const ListedUser& user) {
      return user.name == account->name;
    });
    if (!taken) {
      who.user = account->name;
      who.groups = GroupsOf(*account);
    }
  }
  // Whoever started it has no account in some containers.
  if (who.user.empty() && who.trusted) who.user = absl::StrCat(uid);
  return who;
}

std::shared_ptr<const Principal> Users::Of(uint32_t uid) {
  const int64_t now_ns = clock_->MonotonicNs();
  {
    std::lock_guard lock(mutex_);
    const auto it = kept_.find(uid);
    if (it != kept_.end() && now_ns - it->second.at_ns < kUserKeptNs) return it->second.who;
  }
  int error = 0;
  auto who = std::make_shared<const Principal>(LookUp(uid, &error));
  if (error != 0)
    LogWarn("an account can't be looked up: who was known stays known",
            {{"uid", uid}, {"errno", error}});
  std::lock_guard lock(mutex_);
  if (const auto it = kept_.find(uid); error != 0 && it != kept_.end()) who = it->second.who;
  if (kept_.size() >= kUsersKept) kept_.clear();
  kept_[uid] = {who, now_ns};
  return who;
}

std::shared_ptr<const Principal> Users::Named(const std::string& name) {
  for (const ListedUser& user : listed_) {
    if (user.name == name) return Of(user.uid);
  }
  const std::optional<Account> account = AccountNamed(name);
  // Whoever started it may have no account.
  std::shared_ptr<const Principal> who = Of(account.has_value() ? account->uid : own_uid_);
  return who->user == name ? who : nullptr;
}

KnownAs Users::HowKnown(const std::string& name) const {
  for (const std::string_view reserved : kReservedNames) {
    if (name == reserved) return KnownAs::kReserved;
  }
  for (const ListedUser& user : listed_) {
    if (user.name == name) return KnownAs::kSomebody;
  }
  int error = 0;
  const std::optional<Account> account = AccountNamed(name, &error);
  if (error != 0) return KnownAs::kReserved;
  if (!account.has_value()) return KnownAs::kNobody;
  const bool ordinary = account->uid >= kFirstOrdinaryUid && account->uid != kOverflowUid;
  return ordinary && account->uid != own_uid_ ? KnownAs::kSomebody : KnownAs::kReserved;
}

}  // namespace muster
