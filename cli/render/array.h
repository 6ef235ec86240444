// Arrays and their members as users see them. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/render/format.h"
#include "cli/render/table.h"

namespace muster {

// As commands take it: "17", of a member "17_3".
std::string JobId(const pb::Job& job);
// What it was made of; of a member of an array that member alone: its index, or its values.
pb::JobSpec OwnSpec(const pb::Job& job);
// "120 succeeded, 2 failed, 64 running, 814 waiting": what there is none of is left out.
std::string ArrayCounts(const pb::ArrayStatus& array);
// "122/1000 ended, 64 run"
std::string ShortArrayCounts(const pb::ArrayStatus& array);
// "lr=3e-4, seed=2"; of what was not swept "".
std::string MemberValues(const pb::ArrayMember& member);
// `jobs ARRAY --tasks`: a row a member.
Table MembersTable(const std::vector<pb::Job>& jobs, int64_t now_ns);

}  // namespace muster
