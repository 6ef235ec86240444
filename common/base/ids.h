// Random 128-bit identities, written as 32 hex digits.
#pragma once

#include <string>
#include <string_view>

namespace muster {

std::string RandomId();               // from getrandom(2); aborts if the kernel has none
bool IsId(std::string_view text);     // 32 of [0-9a-f]
bool IsLabel(std::string_view text);  // 1..63 of [A-Za-z0-9._-], not starting with '-' or '.':
                                      // names of jobs, tasks, queues, hosts

}  // namespace muster
