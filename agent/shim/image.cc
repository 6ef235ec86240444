#include "agent/shim/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "agent/shim/durable.h"
#include "agent/shim/exec_status.h"
#include "agent/shim/format.h"

namespace muster::shim {
namespace {

constexpr char kImageName[] = "muster-shim-image";
constexpr unsigned long kGuarded = MS_NOSUID | MS_NODEV;
// Of the file system in memory that becomes the root: the host, the image, what is made for it, and
// both together.
constexpr char kHost[] = "/host", kLower[] = "/lower", kMade[] = "/made", kRoot[] = "/root";
// Each as the host has it.
constexpr const char* kAlways[] = {"/dev", "/proc", "/sys", "/tmp", "/var/tmp"};
constexpr const char* kFiles[] = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"};

int WriteText(const std::string& path, std::string_view text, int flags = 0) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0644);
  if (fd < 0) return errno;
  const int error = WriteAll(fd, text);
  ::close(fd);
  return error;
}

bool LiesIn(std::string_view path, std::string_view directory) {
  return path.substr(0, directory.size()) == directory &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

int MakePath(const std::string& path) {
  for (size_t i = path.find('/', 1); i != std::string::npos; i = path.find('/', i + 1)) {
    if (::mkdir(path.substr(0, i).c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  return ::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST ? 0 : errno;
}

int Bind(const std::string& from, const std::string& to) {
  return ::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0 ? 0 : errno;
}

// A directory that holds nothing, or none at all.
bool IsEmptyOrMissing(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return true;
  if (!S_ISDIR(info.st_mode)) return false;
  DIR* open = ::opendir(path.c_str());
  if (open == nullptr) return false;
  bool empty = true;
  while (const dirent* entry = ::readdir(open))
    empty = empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
  ::closedir(open);
  return empty;
}

// Without any link: it is found by it also where the host's root has another name. Empty: it can't
// be reached.
std::string Canonical(const std::string& path) {
  char buffer[PATH_MAX];
  return ::realpath(path.c_str(), buffer) == nullptr ? "" : buffer;
}

// What becomes visible: from its canonical path on the host to its path in the image.
class View {
 public:
  // `directory`: else a file.
  void Show(const std::string& from, const std::string& at, bool directory) {
    const std::string source = Canonical(from);
    if (!source.empty()) parts_[at] = {source, directory};
  }
  // Whether the host is already seen at this path.
  bool Covers(std::string_view path) const {
    return std::any_of(parts_.begin(), parts_.end(), [&](const auto& part) {
      return part.second.directory && LiesIn(path, part.first);
    });
  }
  // Places for all of it, below kMade.
  int MakePlaces(std::string* step) const {
    for (const auto& [at, part] : parts_) {
      *step = at;
      const std::string place = kMade + at;
      int error = MakePath(part.directory ? place : place.substr(0, place.rfind('/')));
      if (error == 0 && !part.directory) error = WriteText(place, "", O_CREAT);
      if (error != 0) return error;
    }
    return 0;
  }
  int Mount(std::string* step) const {
    for (const auto& [at, part] : parts_) {
      *step = at;
      if (const int error = Bind(kHost + part.source, kRoot + at); error != 0) return error;
    }
    return 0;
  }

 private:
  struct Part {
    std::string source;
    bool directory = false;
  };
  std::map<std::string, Part> parts_;  // in this order: a directory before what lies in it
};

// Of the host's, what the image has no own of. `image`: canonical.
void ShowWhereMissing(const std::string& image, View* view) {
  DIR* root = ::opendir("/");
  if (root == nullptr) return;
  while (const dirent* entry = ::readdir(root)) {
    const std::string path = std::string("/") + entry->d_name;
    struct stat info {};
    if (IsShownWhereMissing(entry->d_name) && ::stat(path.c_str(), &info) == 0 &&
        S_ISDIR(info.st_mode) && IsEmptyOrMissing(image + path))
      view->Show(path, path, /*directory=*/true);
  }
  ::closedir(root);
}

// Before anything is mounted: paths are the host's.
View ViewOf(const Image& image, const std::string& canonical) {
  View view;
  for (const char* path : kAlways) view.Show(path, path, /*directory=*/true);
  for (const char* path : kFiles) view.Show(path, path, /*directory=*/false);
  ShowWhereMissing(canonical, &view);
  std::vector<std::string> shown = image.shown;
  std::sort(shown.begin(), shown.end());
  for (const std::string& path : shown) {
    if (path.size() > 1 && path[0] == '/' && !view.Covers(path))
      view.Show(path, path, /*directory=*/true);
  }
  for (const std::string& path : image.driver)
    view.Show(path, kDriverDirectory + path.substr(path.rfind('/')), /*directory=*/false);
  return view;
}

// As the same user and group; nobody else has a name in there. Groups are kept, and can't be given.
int EnterUserNamespace(uid_t uid, gid_t gid) {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return errno;
  const auto same = [](unsigned id) {
    return std::to_string(id) + " " + std::to_string(id) + " 1";
  };
  if (const int error = WriteText("/proc/self/setgroups", "deny"); error != 0) return error;
  if (const int error = WriteText("/proc/self/uid_map", same(uid)); error != 0) return error;
  return WriteText("/proc/self/gid_map", same(gid));
}

// A file system in memory becomes the root, with the host in kHost.
int MakeScaffold() {
  constexpr char kBase[] = "/tmp";
  const std::string base = kBase;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      ::mount("tmpfs", kBase, "tmpfs", kGuarded, "mode=0755,size=4m") != 0)
    return errno;
  for (const char* place : {kHost, kLower, kMade, kRoot}) {
    if (::mkdir((base + place).c_str(), 0755) != 0) return errno;
  }
  if (::syscall(SYS_pivot_root, kBase, (base + kHost).c_str()) != 0 || ::chdir("/") != 0)
    return errno;
  return 0;
}

std::string Variable(const char* name) {
  const char* value = ::getenv(name);
  const std::string text = value == nullptr ? "" : value;
  return text.find_first_of(":\n") == std::string::npos ? text : "";
}

// A file of the image's, at a path without the '/' it begins with. Links lead to what they do in
// there, and never out of it. What isn't there is empty.
int ReadInImage(const char* path, std::string* content) {
  content->clear();
  const int lower = ::open(kLower, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (lower < 0) return errno;
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // a FIFO would wait for a writer
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, lower, path, &how, sizeof how);
  const int error = fd < 0 ? errno : ReadAll(static_cast<int>(fd), content);
  if (fd >= 0) ::close(static_cast<int>(fd));
  ::close(lower);
  return error == ENOENT ? 0 : error;
}

// The user has a name in the image.
int NameUser(uid_t uid, gid_t gid, std::string* step) {
  const std::string user = Variable("USER").empty() ? "user" : Variable("USER");
  const std::string home = Variable("HOME").empty() ? "/" : Variable("HOME");
  const std::string group = std::to_string(gid);
  const std::string lines[][2] = {{"passwd", user + ":x:" + std::to_string(uid) + ":" + group +
                                                 "::" + home + ":" + Variable("SHELL")},
                                  {"group", user + ":x:" + group + ":"}};
  const long ids[] = {static_cast<long>(uid), static_cast<long>(gid)};
  if (const int error = MakePath(std::string(kMade) + "/etc"); error != 0) return error;
  for (size_t i = 0; i < std::size(lines); ++i) {
    std::string there;
    *step = "/etc/" + lines[i][0];
    if (const int error = ReadInImage(step->c_str() + 1, &there); error != 0) return error;
    if (const int error =
            WriteText(kMade + *step, WithName(there, ids[i], lines[i][1]), O_CREAT | O_TRUNC);
        error != 0)
      return error;
  }
  return 0;
}

int MakeRoot(const std::string& image, const View& view, uid_t uid, gid_t gid, std::string* step) {
  *step = "image";
  if (const int error = Bind(kHost + image, kLower); error != 0) return error;
  *step = "names of user and group";
  if (const int error = NameUser(uid, gid, step); error != 0) return error;
  if (const int error = view.MakePlaces(step); error != 0) return error;
  // Two layers and none to write to. It wants no rights outside of the namespace since Linux 5.11.
  *step = "overlay";
  const std::string layers = std::string("userxattr,lowerdir=") + kMade + ":" + kLower;
  if (::mount("overlay", kRoot, "overlay", kGuarded | MS_RDONLY, layers.c_str()) != 0) return errno;
  if (const int error = view.Mount(step); error != 0) return error;
  *step = "root";
  if (::chdir(kRoot) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0 ||
      ::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0)
    return errno;
  return 0;
}

}  // namespace

std::string FormatImage(const Image& image) {
  std::vector<Line> lines = {Line{"image"}.Add("path", image.path).Add("workdir", image.workdir)};
  for (const std::string& path : image.shown) lines.push_back(Line{"shown"}.Add("path", path));
  for (const std::string& path : image.driver) lines.push_back(Line{"driver"}.Add("path", path));
  return FormatFile(kImageName, lines);
}

bool ParseImage(std::string_view content, Image* image, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, kImageName, &lines, error)) return false;
  *image = Image();
  for (const Line& line : lines) {
    const std::string path = line.Get("path");
    bool known = path.substr(0, 1) == "/";
    if (line.kind == "image") {
      image->path = path;
      image->workdir = line.Get("workdir");
    } else if (line.kind == "shown") {
      image->shown.push_back(path);
    } else if (line.kind == "driver") {
      image->driver.push_back(path);
    } else {
      known = false;
    }
    if (known) continue;
    *error = std::string(kImageName) + ": bad line " + line.kind;
    return false;
  }
  if (!image->path.empty()) return true;
  *error = std::string(kImageName) + ": no image";
  return false;
}

bool IsShownWhereMissing(std::string_view name) {
  constexpr std::string_view kSystem[] = {"bin", "boot", "dev", "etc", "lost+found", "proc", "root",
                                          "run", "sbin", "sys", "tmp", "usr",        "var"};
  return !name.empty() && name[0] != '.' && name.substr(0, 3) != "lib" &&
         std::find(std::begin(kSystem), std::end(kSystem), name) == std::end(kSystem);
}

std::string WithName(std::string_view file, long id, const std::string& line) {
  std::string all(file);
  const std::string wanted = std::to_string(id);
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    const std::string_view entry = file.substr(at, end - at);
    at = end + 1;
    const size_t second = entry.find(':', entry.find(':') + 1);  // name:password:id:
    if (second == std::string_view::npos) continue;
    const std::string_view rest = entry.substr(second + 1);
    if (rest.substr(0, rest.find(':')) == wanted) return all;
  }
  if (!all.empty() && all.back() != '\n') all += '\n';
  return all + line + "\n";
}

int EnterImage(const Image& image, std::string* step, bool* refused) {
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  *step = "image " + image.path;
  const std::string path = Canonical(image.path);
  if (path.empty()) return errno;
  if (::access((path + "/.").c_str(), X_OK) != 0) return errno;
  const View view = ViewOf(image, path);
  if (refused != nullptr) *refused = true;
  *step += ": a user namespace";
  if (const int error = EnterUserNamespace(uid, gid); error != 0) return error;
  *step = "image " + image.path + ": its mounts";
  if (const int error = MakeScaffold(); error != 0) return error;
  std::string what;
  if (const int error = MakeRoot(path, view, uid, gid, &what); error != 0) {
    *step += ": " + what;
    return error;
  }
  *step = "image " + image.path + ": no_new_privs";
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : errno;
}

int RunCanEnter(bool as_nobody) {
  constexpr uid_t kNobody = 65'534;
  std::string step = "to become nobody";
  const bool dropped =
      !as_nobody ||
      (::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
       ::setresuid(kNobody, kNobody, kNobody) == 0 && ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
  const int error = dropped ? EnterImage({.path = "/usr"}, &step) : errno;
  if (error == 0) return 0;
  WriteAll(2, step + ": " + strerror(error) + "\n");
  return 1;
}

int RunEnter(int argc, char** argv) {
  char* end = nullptr;
  const long status = argc < 5 ? -1 : ::strtol(argv[2], &end, 10);
  Image image;
  std::string step = "image", error;
  if (status < 3 || *end != '\0' || ::fcntl(static_cast<int>(status), F_SETFD, FD_CLOEXEC) != 0 ||
      !ParseImage(argv[3], &image, &error))
    return 2;
  const auto fail = [&](const std::string& what, int why) {
    TellLaunchFailure(static_cast<int>(status), what, why);
    return 127;
  };
  bool refused = false;
  const int why = EnterImage(image, &step, &refused);
  if (why != 0 && refused) {
    TellImageRefused(static_cast<int>(status), step, why);
    return 127;
  }
  if (why != 0) return fail(step, why);
  if (!image.workdir.empty() && ::chdir(image.workdir.c_str()) != 0)
    return fail("workdir " + image.workdir, errno);
  ::execvp(argv[4], argv + 4);
  return fail(std::string("exec ") + argv[4] + " (in the image " + image.path + ")", errno);
}

}  // namespace muster::shim
