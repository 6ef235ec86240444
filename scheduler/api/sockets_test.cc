#include "scheduler/api/sockets.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace muster {
namespace {

TEST(Sockets, AcceptIsPutOffWhereItWouldFailAgainAtOnce) {
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM})
    EXPECT_TRUE(LastsAfterAccept(error)) << error;
  for (const int error : {EAGAIN, EINTR, ECONNABORTED, EPROTO, EPERM})
    EXPECT_FALSE(LastsAfterAccept(error)) << error;
}

}  // namespace
}  // namespace muster
