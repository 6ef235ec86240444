// Every method has a policy that can be kept, and the documents say which.
#include "scheduler/access/policy.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job_service.pb.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

std::string Text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(Policy, EveryMethodOfEveryServiceHasOne) {
  google::protobuf::FileDescriptorSet all;
  ASSERT_TRUE(all.ParseFromString(Text(MUSTER_DESCRIPTORS)));
  std::vector<std::string> methods, known;
  for (const auto& file : all.file()) {
    for (const auto& service : file.service()) {
      for (const auto& method : service.method()) {
        methods.push_back(service.name() + "/" + method.name());
        EXPECT_NE(method.options().GetExtension(pb::policy).right(), pb::RIGHT_UNSPECIFIED)
            << methods.back();
      }
    }
  }
  for (const MethodPolicy& method : MethodPolicies()) known.push_back(method.name);
  EXPECT_THAT(known, UnorderedElementsAreArray(methods))
      << "a file with services is missing in policy.cc";
}

TEST(Policy, WhatChangesSomethingIsAudited) {
  std::vector<std::string> audited;
  for (const MethodPolicy& method : MethodPolicies()) {
    if (method.policy.audited()) audited.push_back(method.name);
  }
  EXPECT_THAT(
      audited,
      ElementsAre("JobService/Submit", "JobService/Cancel", "JobService/Exec", "JobService/Forward",
                  "QueueService/Apply", "ClusterService/Drain", "ClusterService/Resume",
                  "ClusterService/ConfirmOff", "ClusterService/ReleaseQuarantine",
                  "AccessService/Grant", "AccessService/Revoke", "AgentService/ReadSecrets",
                  "JoinService/Join", "JoinService/LogIn", "JoinService/RenewExpired",
                  "TrustService/Renew", "TrustService/Rotate", "TrustService/NewToken",
                  "TrustService/CreateToken", "TrustService/RevokeToken",
                  "TrustService/RevokeHolder", "PackService/Put", "SecretService/Set",
                  "SecretService/Delete"));
}

TEST(Policy, OneThatCannotBeKeptIsSeen) {
  const auto policy = [](pb::Right right, pb::Object object, const std::string& field,
                         pb::Rate rate = pb::RATE_READ) {
    pb::Policy made;
    made.set_right(right);
    made.set_object(object);
    made.set_field(field);
    made.set_rate(rate);
    return made;
  };
  const struct {
    pb::Policy policy;
    const char* wrong;
  } cases[] = {
      {pb::Policy(), "no policy"},
      {policy(pb::RIGHT_SEE, pb::OBJECT_JOB, "id"), ""},
      {policy(pb::RIGHT_SEE, pb::OBJECT_JOB, "id", pb::RATE_UNSPECIFIED), "no rate"},
      {policy(pb::RIGHT_SEE, pb::OBJECT_JOB, "number"), "no such number"},
      {policy(pb::RIGHT_SEE, pb::OBJECT_JOB, ""), "field"},
      {policy(pb::RIGHT_SEE, pb::OBJECT_ROOT, "id"), "field"},
      {policy(pb::RIGHT_ASK, pb::OBJECT_ROOT, ""), "asks nothing"},
      {policy(pb::RIGHT_ADMINISTER, pb::OBJECT_TREE, "id"), "no such id"},
  };
  for (const auto& c : cases) {
    const std::string wrong = WhyNoPolicy(c.policy, *pb::GetJobRequest::descriptor());
    if (c.wrong[0] == '\0') {
      EXPECT_EQ(wrong, "");
    } else {
      EXPECT_THAT(wrong, HasSubstr(c.wrong)) << c.policy.ShortDebugString();
    }
  }
}

TEST(PolicyDeathTest, WhatHasNoPolicyIsNotServed) {
  EXPECT_DEATH(PolicyOf("JobService/Own"), "JobService/Own");
  EXPECT_DEATH(RouteOf("/debug"), "/debug");
}

TEST(Policy, TheDocumentSaysTheSame) {
  EXPECT_THAT(Text(MUSTER_ACCESS_DOC), HasSubstr(PolicyTable()))
      << "put this into docs/access.md:\n"
      << PolicyTable();
}

}  // namespace
}  // namespace muster
