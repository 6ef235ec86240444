#include "scheduler/api/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace muster {
namespace {

TEST(ErrorsTest, ABadRequestIsAGoogleRpcStatusByteForByte) {
  const grpc::Status status = BadRequest("m", {{"f", "d"}});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "m");
  const std::string violation(
      "\x0a\x06\x0a\x01"
      "f\x12\x01"
      "d",
      8);
  const std::string any = "\x0a\x29type.googleapis.com/google.rpc.BadRequest\x12\x08" + violation;
  EXPECT_EQ(status.error_details(), std::string("\x08\x03\x12\x01m\x1a\x35", 7) + any);
}

TEST(ErrorsTest, NeverFitsNamesEachProblemTwice) {
  const grpc::Status status =
      NeverFits("no", {{"tasks[0].workers", "12 of 8"}, {"tasks[0].resources", "too much"}}, false);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(details.message(), "no");
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::PreconditionFailure failure;
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(0).UnpackTo(&failure));
  ASSERT_TRUE(details.details(1).UnpackTo(&bad));
  ASSERT_EQ(failure.violations_size(), 2);
  EXPECT_EQ(failure.violations(0).type(), "NEVER_FITS");
  EXPECT_EQ(failure.violations(0).subject(), "tasks[0].workers");
  ASSERT_EQ(bad.field_violations_size(), 2);
  EXPECT_EQ(bad.field_violations(1).field(), "tasks[0].resources");
  EXPECT_EQ(bad.field_violations(1).description(), "too much");
}

TEST(ErrorsTest, NeverFitsSaysWhetherWaitingForHostsWouldHelp) {
  google::rpc::Status details;
  ASSERT_TRUE(
      details.ParseFromString(NeverFits("no", {{"workers", "12 of 8"}}, true).error_details()));
  ASSERT_EQ(details.details_size(), 3);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(2).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "WAIT_FOR_CAPACITY");
}

TEST(ErrorsTest, StatusCodesKeepTheirNumbers) {
  EXPECT_EQ(ToGrpc(absl::OkStatus()).error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(ToGrpc(absl::AlreadyExistsError("x")).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(ToGrpc(absl::UnavailableError("x")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ToGrpc(absl::UnavailableError("x")).error_message(), "x");
}

}  // namespace
}  // namespace muster
