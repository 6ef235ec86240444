// What the kernel counts of a connection.
#pragma once

#include <cstdint>

namespace muster {

// Bytes that came over this TCP connection since its begin, read or not; 0 where it has ended.
int64_t ReceivedBytes(int fd);

}  // namespace muster
