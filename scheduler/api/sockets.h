// What both servers ask of the kernel.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

// Bytes that came over this TCP connection since its begin, read or not; 0 where it has ended.
int64_t ReceivedBytes(int fd);
// Bytes sent over it that its peer has received; 0 where it isn't known.
int64_t DeliveredBytes(int fd);

// An error of accept that the next call meets, too: descriptors or memory are wanting. All others
// speak of a connection that is gone, or that has not come.
bool LastsAfterAccept(int error);
// After an accept that failed with errno `error`: logs and waits 100 ms where it lasts, so that
// the loop doesn't spin. The connection stays in the kernel's queue. `door` is for the log.
void AfterFailedAccept(int error, std::string_view door);

}  // namespace muster
