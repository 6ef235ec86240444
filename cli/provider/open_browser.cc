#include "cli/provider/open_browser.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

extern char** environ;

namespace muster {

void OpenBrowser(const std::string& url) {
  const char* named = getenv("BROWSER");
  const bool desktop = getenv("DISPLAY") != nullptr || getenv("WAYLAND_DISPLAY") != nullptr;
  if (named == nullptr && !desktop) return;
  std::string program = named != nullptr ? named : "xdg-open", address = url;
  char* words[] = {program.data(), address.data(), nullptr};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  // It is nobody's to wait for: it may be the browser itself, and ends when that is closed.
  posix_spawnp(&child, program.c_str(), &files, nullptr, words, environ);
  posix_spawn_file_actions_destroy(&files);
}

}  // namespace muster
