#include "cli/commands/local_trainer.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/files.h"
#include "common/base/run_program.h"
#include "common/base/units.h"

namespace muster {

std::string LocalTrainer() {
  const std::string trainer = ExecutableDirectory() + "/muster-trainer";
  return ::access(trainer.c_str(), X_OK) == 0 ? trainer : "";
}

std::optional<std::string> AskLocalTrainer(const std::vector<std::string>& arguments,
                                           const std::string& config,
                                           const std::vector<int>& good) {
  const std::string trainer = LocalTrainer();
  if (trainer.empty()) return std::nullopt;
  ProgramOptions options{
      .argv = {trainer}, .input = config, .time_limit_ns = 10 * kSecond, .most_bytes = 1 << 20};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  if (!end.ok() || std::find(good.begin(), good.end(), end->exit_code) == good.end())
    return std::nullopt;
  return end->output;
}

std::string LocalTrainerSchema() { return AskLocalTrainer({"--schema"}, "").value_or(""); }

}  // namespace muster
