#include "cli/commands/beside.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"

namespace muster {

std::string MissingBeside(const std::string& name) {
  const std::string program = ExecutableDirectory() + "/" + name;
  if (access(program.c_str(), X_OK) == 0) return "";
  return absl::StrCat("muster: ", program, ": ", strerror(errno), "\n  ", name,
                      " has to lie beside muster, or in MUSTER_BIN_DIR. In a checkout this builds "
                      "it: deploy/build.sh ",
                      name, "\n");
}

int BecomeBeside(Session& session, const std::string& name, std::vector<std::string> arguments) {
  if (const std::string missing = MissingBeside(name); !missing.empty()) {
    session.Err(missing);
    return kExitBadInput;
  }
  const std::string program = ExecutableDirectory() + "/" + name;
  arguments.insert(arguments.begin(), name);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  session.Err(absl::StrCat("muster: ", program, ": ", strerror(errno), "\n"));
  return kExitBadInput;
}

}  // namespace muster
