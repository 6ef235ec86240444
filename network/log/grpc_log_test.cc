#include "network/log/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(GrpcLog, IsOneEventALineAndTheSameOneOnceAMinute) {
  gpr_log_verbosity_init();  // as gRPC does when it is used
  RouteGrpcLog();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 42; ++i)
    gpr_log(GPR_ERROR, "Handshake failed:\n certificate verify failed (%d)", i);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_THAT(said,
              MatchesRegex("20[-0-9T:.]*Z warning gRPC what=\".*\" at=grpc_log_test.cc:[0-9]+ "
                           "times=1\n"));
  EXPECT_THAT(said, HasSubstr("Handshake failed:\\n certificate verify failed (0)"));
}

TEST(GrpcLog, WhatOnePlaceSaysDoesNotSilenceAnother) {
  gpr_log_verbosity_init();  // as gRPC does when it is used
  RouteGrpcLog();
  ::testing::internal::CaptureStderr();
  gpr_log(GPR_ERROR, "one");
  gpr_log(GPR_ERROR, "other");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("what=one"));
  EXPECT_THAT(said, HasSubstr("what=other"));
}

}  // namespace
}  // namespace muster
