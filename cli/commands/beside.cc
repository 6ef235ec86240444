#include "cli/commands/beside.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"

namespace muster {

int BecomeBeside(Session& session, const std::string& name, std::vector<std::string> arguments) {
  const std::string program = ExecutableDirectory() + "/" + name;
  arguments.insert(arguments.begin(), name);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  session.Err(absl::StrCat("muster: ", program, ": ", strerror(errno), ". ", name,
                           " has to lie beside muster, or in MUSTER_BIN_DIR\n"));
  return kExitBadInput;
}

}  // namespace muster
