#include "scheduler/ask/check_on.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "scheduler/state/hosted.h"

namespace muster {
namespace {

// What no host's part of the holder has, however free it is: the job would wait for ever. What the
// holder's spec leaves out is a share of its hosts, which only they know; but for what only is
// counted where it is stated.
std::vector<FieldProblem> CheckRoom(const std::string& name, const pb::TaskSpec& holder,
                                    const pb::JobSpec& spec) {
  const pb::Resources &has = holder.resources(), &wants = spec.tasks(0).resources();
  const int64_t workers = std::max(1, holder.workers().max());
  std::vector<FieldProblem> problems;
  const auto refuse = [&](const std::string& field, const std::string& what,
                          const std::string& has) {
    problems.push_back({TaskFieldPath(spec, 0, "resources." + field),
                        absl::StrCat(what, ", and ", name, " has ", has)});
  };
  const auto too_much = [&](const std::string& field, const std::string& what,
                            const std::string& most) {
    refuse(field, what, most + ": ask for that at most, or leave on: out");
  };
  const auto& types = has.gpu_types();
  const bool fits =
      std::any_of(wants.gpu_types().begin(), wants.gpu_types().end(), [&](const std::string& type) {
        return std::find(types.begin(), types.end(), type) != types.end();
      });
  if (wants.gpus_milli() > workers * has.gpus_milli()) {
    too_much("gpus", FormatMilli(wants.gpus_milli()), FormatMilli(workers * has.gpus_milli()));
  } else if (wants.gpus_milli() > 0 && !fits) {
    refuse("gpu_types", absl::StrJoin(wants.gpu_types(), ", "),
           absl::StrJoin(types, ", ") + ": name that, or leave on: out");
  }
  if (has.cpus_milli() > 0 && wants.cpus_milli() > workers * has.cpus_milli())
    too_much("cpus", FormatMilli(wants.cpus_milli()), FormatMilli(workers * has.cpus_milli()));
  const auto check_bytes = [&](const char* field, int64_t wanted, int64_t there, bool shared) {
    if (wanted <= workers * there || (there == 0 && shared)) return;
    if (there > 0) return too_much(field, FormatSize(wanted), FormatSize(workers * there));
    refuse(field, FormatSize(wanted),
           absl::StrCat("none of its own: leave it out, or submit that job with ", field, ":"));
  };
  check_bytes("memory", wants.memory_bytes(), has.memory_bytes(), has.gpus_milli() > 0);
  check_bytes("disk", wants.disk_bytes(), has.disk_bytes(), false);
  return problems;
}

}  // namespace

std::vector<FieldProblem> CheckHolder(const State& state, const pb::JobSpec& spec,
                                      const std::string& owner) {
  if (spec.on().empty()) return {};
  const JobRow* holder = state.FindJob(HolderNumber(spec));
  const std::string name = absl::StrCat("job ", spec.on());
  if (holder == nullptr || holder->owner != owner)
    return {{"on",
             absl::StrCat("there is no job ", spec.on(),
                          " of yours; on devices that others hold nobody runs: muster dev list")}};
  if (holder->finished() || holder->cancel_requested)
    return {{"on", absl::StrCat(name, " has ended: muster dev resume ", spec.on())}};
  if (holder->holder != 0)
    return {{"on", absl::StrCat(name, " runs on devices of job ", holder->holder,
                                " itself; name that one")}};
  if (holder->tasks.size() != 1 || holder->array != 0)
    return {
        {"on", absl::StrCat(name, " is an array or has several tasks; name a job of one task")}};
  return CheckRoom(name, holder->task_spec(0), spec);
}

}  // namespace muster
