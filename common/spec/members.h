// The members of a job with array, sweep or independent_workers: how many there are, and what each
// of them runs. Members are counted from 0; what users call an index is written in the job file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

inline constexpr int32_t kMaxMembers = 10'000;
inline constexpr int64_t kMaxArrayIndex = 1'000'000'000;
inline constexpr size_t kMaxArrayBytes =
    4'096;  // of the text: it is read at each start of a member
// Of the spec, for all members together: each member's row has it.
inline constexpr int64_t kMaxMembersBytes = int64_t{64} << 20;

// "0-99", "1-9:2", "3,5,8-10", each with "%8" behind it.
struct ArrayIndices {
  struct Range {
    int64_t first = 0, last = 0, step = 1;
    int64_t size() const { return (last - first) / step + 1; }
  };
  std::vector<Range> ranges;  // none overlaps another
  int32_t at_a_time = 0;      // 0: all
};
// nullopt: *why says what is wrong with it. At most kMaxMembers indices.
std::optional<ArrayIndices> ParseArray(std::string_view text, std::string* why);

// Members of the job; 0: it is no array.
int32_t MembersOf(const pb::JobSpec& spec);
// How many of them may be unfinished at a time, besides those whose turn hasn't come.
int32_t MembersAtATime(const pb::JobSpec& spec);
// It stands behind all other jobs of its queue: an independent worker above the least number.
bool StandsBehind(const pb::JobSpec& spec, int32_t member);
// As users call the member. Of an array: its index; else counted from 0.
int64_t IndexOfMember(const pb::JobSpec& spec, int32_t member);
// The member that users call so; -1: there is none.
int32_t MemberOfIndex(const pb::JobSpec& spec, int64_t index);

using SweptValues = std::vector<std::pair<std::string, std::string>>;
// The values of a sweep that the member has, by name; the last name changes the fastest.
SweptValues ValuesOfMember(const pb::JobSpec& spec, int32_t member);

// A name of a sweep that sets a key of trainer, such as trainer.learning_rate.
bool SetsTrainer(std::string_view name);
// *trainer_json with this key set; a value that is JSON (a number, true, null, a list), or a number
// as .5, is that, else text. False: a part of the path is no map.
bool SetTrainerKey(std::string_view name, const std::string& value, std::string* trainer_json);

// The task as the member runs it: {{NAME}} and {{index}} in run, setup, env and trainer.export are
// replaced, and ray by what starts it.
pb::TaskSpec TaskOfMember(const pb::JobSpec& spec, int32_t task, int32_t member);
// Failures of its program that cost the member's task a restart each, until it fails for good.
int32_t MaxRestartsOf(const pb::JobSpec& spec, int32_t task, int32_t member);
// Where a task's trainer exports to, as its file has it; empty: nowhere.
std::string ExportOf(const pb::TaskSpec& task);
// The job's environment as the member has it.
std::map<std::string, std::string> JobEnvOfMember(const pb::JobSpec& spec, int32_t member);
// The variable that has its value: MUSTER_SWEEP_NAME, a dot as '_'.
std::string SweepVariable(std::string_view name);
// MUSTER_JOB, MUSTER_ARRAY_* and MUSTER_SWEEP_*, of the array with this number.
std::map<std::string, std::string> MemberVariables(const pb::JobSpec& spec, uint64_t array,
                                                   int32_t member);
// How commands name it: 17_3.
std::string MemberId(const pb::JobSpec& spec, uint64_t array, int32_t member);

}  // namespace muster
