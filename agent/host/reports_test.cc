// Which attempts keep what their rank 0 reports.
#include <gtest/gtest.h>

#include "agent/host/environment.h"

namespace muster::agent {
namespace {

TEST(Reports, AreKeptOnRank0sHostOnlyAndWhereTheJobIsTracked) {
  AttemptRecord record;
  record.id = {std::string(32, 'c'), "train", 2};
  record.prepare.mutable_task()->mutable_run()->set_shell("echo");
  record.prepare.mutable_here()->set_workers(1);
  record.prepare.set_gang_workers(2);
  record.prepare.set_attempt_directory("/j/train/attempt-2");
  LaunchHost host;
  host.bin_directory = "/opt/muster/bin";
  const auto keeps = [&] {
    shim::Spec told;
    std::string error;
    const auto spec = MakeShimSpec(record, host, "token", "/run/muster/p");
    EXPECT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(spec.ok() && shim::ParseSpec(shim::FormatSpec(*spec), &told, &error)) << error;
    return told.keep_reports;
  };
  EXPECT_FALSE(keeps());
  record.prepare.set_keep_reports(true);
  EXPECT_TRUE(keeps());
  record.prepare.mutable_here()->set_first_group_rank(1);
  EXPECT_FALSE(keeps());
}

}  // namespace
}  // namespace muster::agent
