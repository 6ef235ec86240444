// The names in {{…}} of a job's text, and how they go with the names that its members have:
// {{index}}, and those of its sweep.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// Letters, digits and '_', not starting with a digit.
bool IsPlainName(std::string_view name);

struct Placeholder {
  std::string path;   // the field that has it
  std::string inner;  // what stands between the braces
};
// Of run, setup, env and trainer.export. `short_form`: the one task's fields have no tasks[0].
std::vector<Placeholder> PlaceholdersOf(const pb::JobSpec& spec, bool short_form);

// Why {{inner}}, which is none of the names, is taken for a slip of one; "" of another program's.
std::string WrongPlaceholder(const std::string& inner, const std::vector<std::string>& names);

// Names of the sweep that the job's text doesn't take: neither {{NAME}} nor MUSTER_SWEEP_NAME
// stands in it, and none is a key of trainer. Programs may read the variable all the same.
std::vector<std::string> UntakenNames(const pb::JobSpec& spec);
// The placeholder without a value that seems to stand for this untaken name; "" where there is
// none. Told as why the name is refused.
std::string WhyUntaken(const std::string& name, const pb::JobSpec& spec);

// For the user of a job that is not refused: a line for each untaken name, and for each {{name}}
// that stays as it stands.
std::vector<std::string> NotesOnNames(const pb::JobSpec& spec);

}  // namespace muster
