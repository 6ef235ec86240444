// Files of tensors, a checkpoint's or somebody else's model: whatever the header says, each
// tensor's bytes lie in the file.
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "trainer/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::trainer;
  const absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensors(std::span<const uint8_t>(data, size));
  if (!header.ok()) return 0;
  uint64_t bytes = 0;
  for (const auto& [name, entry] : header->tensors) {
    MUSTER_CHECK(entry.begin <= entry.end && header->data_offset + entry.end <= size);
    bytes += entry.end - entry.begin;
  }
  MUSTER_CHECK(header->data_offset + bytes == size);
  return 0;
}
