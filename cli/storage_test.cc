#include "cli/storage.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(Storage, TellsWhatIsToldThereAndSaysWhatIsNot) {
  const struct {
    const char* output;
    const char* shown;  // behind the directory
  } kCases[] = {{"room 4096 1048576 262144\nquota 512000 900000 1048576\nfiles 20\n",
                 "files in it       20KiB\n"
                 "free there        1GiB of 4GiB\n"
                 "quota of ann      500MiB of 1GiB\n"},
                {"room 4096 1048576 0\nquota 5 2048 0\n",
                 "files in it       not told there\n"
                 "free there        0B of 4GiB\n"
                 "quota of ann      5KiB of 2MiB\n"},
                {"quota 5 0 0\nfiles 1\n",
                 "files in it       1KiB\n"
                 "free there        not told there\n"
                 "quota of ann      not told there\n"},
                {"room 4096 9223372036854775807 1\nfiles 0\nnoise of a shell\n",
                 "files in it       0B\n"
                 "free there        not told there\n"
                 "quota of ann      not told there\n"}};
  pb::Job job;
  job.set_owner("ann");
  job.set_directory("/data/ann/jobs/7");
  for (const auto& [output, shown] : kCases) {
    const absl::StatusOr<StorageTold> told = ReadStorage(output);
    ASSERT_TRUE(told.ok()) << told.status();
    EXPECT_EQ(RenderStorage(job, *told),
              std::string("directory         /data/ann/jobs/7\n") + shown)
        << output;
  }
}

TEST(Storage, WhatIsNoLineOfOursTellsNothing) {
  for (const char* output : {"", "\n", "room", "room a b c", "room 1 2", "files -1", "quota 1 2",
                             "stat: not found", "files 99999999999999999999"})
    EXPECT_FALSE(ReadStorage(output).ok()) << output;
}

}  // namespace
}  // namespace muster
