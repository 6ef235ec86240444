#include "scheduler/agents/seen_mac.h"

#include "absl/strings/str_cat.h"
#include "common/pki/mac.h"
#include "common/pki/seal.h"

namespace muster {

std::string MacOfSeen(std::string_view key, const std::string& store_id, uint64_t epoch,
                      uint64_t commit) {
  if (key.empty()) return "";
  return HmacSha256(key, absl::StrCat(store_id, " ", epoch, " ", commit)).substr(0, kSeenMacBytes);
}

bool IsMacOfSeen(std::string_view mac, std::string_view key, const std::string& store_id,
                 uint64_t epoch, uint64_t commit) {
  return !key.empty() && EqualInConstantTime(mac, MacOfSeen(key, store_id, epoch, commit));
}

}  // namespace muster
