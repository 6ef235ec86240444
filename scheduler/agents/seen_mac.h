// What an agent has seen of this store, in musterd's own word. Each message says the epoch and the
// newest commit, with a MAC; the agent keeps both, and its next Hello says them again. An agent
// that has seen more than the store has stops musterd (contract 19), so a host of another machine
// has to show that musterd said so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

inline constexpr size_t kSeenMacBytes = 16;
inline constexpr char kSeenMacPurpose[] = "what agents have seen";  // of its key (Office::KeyFor)

// Empty without a key.
std::string MacOfSeen(std::string_view key, const std::string& store_id, uint64_t epoch,
                      uint64_t commit);
// Whether `mac` is that one. Never without a key.
bool IsMacOfSeen(std::string_view mac, std::string_view key, const std::string& store_id,
                 uint64_t epoch, uint64_t commit);

}  // namespace muster
