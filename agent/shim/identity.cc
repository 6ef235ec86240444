#include "agent/shim/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace muster::shim {
namespace {

constexpr int kMostCapabilities = 64;

int DropBounding() {
  for (int capability = 0; capability < kMostCapabilities; ++capability) {
    const int there = ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
    if (there < 0) return 0;  // past the last that this kernel knows
    if (there == 1 && ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) return errno;
  }
  return 0;
}

int EmptyCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  return ::syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

bool HasCapability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return true;
  return std::any_of(std::begin(data), std::end(data), [](const auto& word) {
    return (word.effective | word.permitted | word.inheritable) != 0;
  });
}

bool IsUser(const User& user) {
  uid_t real = 0, effective = 0, saved = 0;
  gid_t groups[3] = {};
  if (::getresuid(&real, &effective, &saved) != 0 ||
      ::getresgid(&groups[0], &groups[1], &groups[2]) != 0)
    return false;
  if (real != user.uid || effective != user.uid || saved != user.uid) return false;
  if (std::any_of(std::begin(groups), std::end(groups), [&](gid_t g) { return g != user.gid; }))
    return false;
  std::vector<gid_t> wanted(user.groups.begin(), user.groups.end()), held(65536);
  const int count = ::getgroups(static_cast<int>(held.size()), held.data());
  if (count < 0) return false;
  held.resize(static_cast<size_t>(count));
  std::sort(wanted.begin(), wanted.end());
  std::sort(held.begin(), held.end());
  return wanted == held;
}

void WriteOwn(const char* file, const char* text, size_t size) {
  const int fd = ::open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (::write(fd, text, size) < 0) errno = 0;
  ::close(fd);
}

}  // namespace

std::string WhyNotRunAs(const User& user) {
  const std::string uid = std::to_string(user.uid);
  if (user.uid == 0) return "uid 0 (root) runs no jobs: submit as a user of your own";
  if (user.uid < user.minimum)
    return "uid " + uid + " is below " + std::to_string(user.minimum) +
           ", as system accounts are: submit as a user of your own, or have --min-uid lowered";
  if (user.uid == static_cast<uid_t>(-1) || user.uid == 65534)
    return "uid " + uid + " is nobody's: submit as a user of your own";
  if (user.gid == 0 || std::find(user.groups.begin(), user.groups.end(), 0) != user.groups.end())
    return "uid " + uid + " is in the group 0 (root): take it out of that group";
  return "";
}

std::string WhyNotRunAs(const Spec& spec, uid_t own) {
  if (!spec.user.has_value())
    return own != 0 || spec.as_itself ? "" : "the spec names no user, and this is root";
  if (spec.as_itself) return "the spec names a user, and none";
  if (own != 0) return "only root can run programs as their owners";
  if (!spec.pid_namespace) return "programs of several users want PID namespaces";
  return WhyNotRunAs(*spec.user);
}

int BecomeUser(const User& user, std::string* step) {
  *step = "bounding capabilities";
  if (const int error = DropBounding(); error != 0) return error;
  *step = "ambient capabilities";
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return errno;
  *step = "groups";
  const std::vector<gid_t> groups(user.groups.begin(), user.groups.end());
  if (::setgroups(groups.size(), groups.data()) != 0) return errno;
  *step = "gid";
  if (::setresgid(user.gid, user.gid, user.gid) != 0) return errno;
  *step = "uid";
  if (::setresuid(user.uid, user.uid, user.uid) != 0) return errno;
  *step = "capabilities";
  if (const int error = EmptyCapabilities(); error != 0) return error;
  *step = "what was given up came back";
  if (::setuid(0) == 0 || ::setgid(0) == 0 || HasCapability() || !IsUser(user)) return EPERM;
  return 0;
}

int GiveUpTheRest(std::string* step) {
  *step = "no_new_privs";
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  *step = "keyring";
  // Where the kernel has none, or nobody may use them, there is nothing to give up.
  if (::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) < 0 && errno != ENOSYS &&
      errno != EPERM)
    return errno;
  *step = "limits";
  for (const auto resource : {RLIMIT_NICE, RLIMIT_RTPRIO}) {
    const rlimit none{0, 0};
    if (::setrlimit(resource, &none) != 0) return errno;
  }
  rlimit core{};
  if (::getrlimit(RLIMIT_CORE, &core) != 0) return errno;
  core.rlim_cur = 0;
  return ::setrlimit(RLIMIT_CORE, &core) == 0 ? 0 : errno;
}

void GiveUpPrecedence() {
  WriteOwn("/proc/self/oom_score_adj", "0", 1);
  if (::getpriority(PRIO_PROCESS, 0) < 0) ::setpriority(PRIO_PROCESS, 0, 0);
}

}  // namespace muster::shim
