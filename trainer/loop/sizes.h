// Sizes of memory, as people write and read them.
#pragma once

#include <cstdint>
#include <string>

namespace muster::trainer {

// Bytes of "80GiB", "80g", "85.9GB" or a plain number; 0: it is none. A letter alone is binary, as
// in a flavour's name.
int64_t ParseBytes(const std::string& text);
// The memory that a device's name ends with, "h100-80g" or "A100-SXM4-80GB"; 0: it doesn't say.
int64_t MemoryInName(const std::string& device);
// "8.0 KiB", "812.3 MiB", "79.25 GiB", right-aligned to `width`.
std::string SizeText(int64_t bytes, int width = 0);

}  // namespace muster::trainer
