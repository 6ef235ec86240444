#include "agent/host/logs.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "agent/host/causes.h"
#include "agent/shim/log_writer.h"

namespace muster::agent {
namespace {

class LogsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-logs-test-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
};

TEST_F(LogsTest, ReadingLogsTellsStandardErrorApartAndGivesWhatWasWritten) {
  shim::LogWriter log(directory_, 0, 1 << 20, 2);
  shim::LineBuffer out(64, /*is_error=*/false), err(64, /*is_error=*/true);
  out.Add("one\n\x02 not a mark\n", &log);
  err.Add("two\n\x03\n", &log);
  out.Add("\x03three\nunfin", &log);
  err.Add("\n", &log);
  out.Finish(&log);
  int64_t dropped = 0;
  const LogCursor::Piece piece = LogCursor(directory_, 0, 0).Read(1000, &dropped);
  EXPECT_EQ(piece.data, "one\n\x02 not a mark\ntwo\n\x03\n\x03three\n\nunfin\n");
  const auto text = [&](size_t i) {
    return piece.data.substr(piece.from_stderr[i].first,
                             piece.from_stderr[i].second - piece.from_stderr[i].first);
  };
  ASSERT_EQ(piece.from_stderr.size(), 2u);
  EXPECT_EQ(text(0), "two\n\x03\n");
  EXPECT_EQ(text(1), "\n");
}

TEST_F(LogsTest, ReadingLogsWaitsForTheRestOfALine) {
  shim::LogWriter log(directory_, 0, 1 << 20, 2);
  int64_t dropped = 0;
  LogCursor cursor(directory_, 0, 0);
  log.Append("one\nhalf ");  // as a reader may see it while it is written
  EXPECT_EQ(cursor.Read(1000, &dropped).data, "one\n");
  EXPECT_EQ(cursor.Read(1000, &dropped).data, "");
  log.Append("a line\n");
  EXPECT_EQ(cursor.Read(1000, &dropped).data, "half a line\n");
}

TEST_F(LogsTest, ReadingLogsAcrossRotation) {
  int64_t dropped = 0;
  shim::LogWriter log(directory_, 3, 32, 2);
  for (int i = 0; i < 4; ++i)
    log.Append("line " + std::to_string(i) + "\n");  // 7 bytes each, one file
  LogCursor all(directory_, 3, 0);
  LogCursor tail(directory_, 3, 2);
  EXPECT_EQ(tail.Read(1000, &dropped).data, "line 2\nline 3\n");
  EXPECT_EQ(all.Read(7, &dropped).data, "line 0\n");
  for (int i = 4; i < 12; ++i) log.Append("line " + std::to_string(i) + "\n");
  EXPECT_EQ(LogCursor(directory_, 3, 5).Read(1000, &dropped).data,
            "line 7\n");  // the first of two files
  EXPECT_EQ(dropped, 0);
  std::string rest;
  for (std::string part = all.Read(1000, &dropped).data; !part.empty();
       part = all.Read(1000, &dropped).data)
    rest += part;
  EXPECT_EQ(dropped, 21);  // lines 1 to 3
  EXPECT_EQ(rest.substr(0, 7), "line 4\n");
  EXPECT_EQ(rest.substr(rest.size() - 8), "line 11\n");
}

TEST_F(LogsTest, TheLastLinesAreLookedForSoManyBytesAtATime) {
  shim::LogWriter log(directory_, 3, 1 << 20, 4);
  for (int i = 0; i < 100'000; ++i) log.Append("line " + std::to_string(1'000'000 + i) + "\n");
  LogCursor cursor(directory_, 3, 90'000);
  int looks = 0;
  for (bool found = false; !found; ++looks) {
    ASSERT_LT(looks, 100);
    int64_t bytes = 64 << 10;
    found = cursor.Seek(&bytes);
  }
  EXPECT_GE(looks, 4) << "they are more than a mebibyte";
  int64_t dropped = 0;
  EXPECT_EQ(cursor.Read(13, &dropped).data, "line 1010000\n");
  LogCursor all(directory_, 3, 1'000'000);
  EXPECT_EQ(all.Read(13, &dropped).data, "line 1000000\n");
  EXPECT_EQ(dropped, 0);
}

TEST_F(LogsTest, LastLinesAreTheLastHoweverLongTheyAre) {
  const struct {
    const char* what;
    int lines, bytes;  // before the last one
    int64_t most_lines, most_bytes;
    std::string told;
  } kCases[] = {
      {"all", 2, 3, 10, 100, "xxx\nxxx\nend\n"},
      {"so many", 20, 3, 3, 100, "xxx\nxxx\nend\n"},
      {"so many bytes, in whole lines", 20, 3, 10, 13, "xxx\nxxx\nend\n"},
      {"so many bytes, which are whole lines", 20, 3, 10, 12, "xxx\nxxx\nend\n"},
      {"of long ones only the last fits", 20, 1000, 10, 100, "end\n"},
      {"the end of a line that is longer", 1, 1000, 2, 3, "nd\n"},
      {"a progress bar", 5, 65536, 80, 65536, "end\n"},
  };
  int32_t rank = 0;
  for (const auto& c : kCases) {
    shim::LogWriter log(directory_, ++rank, 1 << 20, 2);
    for (int i = 0; i < c.lines; ++i)
      log.Append("\x02" + std::string(static_cast<size_t>(c.bytes), 'x') + "\n");
    log.Append("end\n");
    EXPECT_EQ(LastLines(directory_, rank, c.most_lines, c.most_bytes), c.told) << c.what;
  }
  EXPECT_EQ(LastLines(directory_, 99, 10, 100), "");
  shim::LogWriter log(directory_, 99, 16, 3);  // two lines a file
  for (const char* line : {"one", "two", "three", "four", "five"})
    log.Append("\x02" + std::string(line) + "\n");
  log.Append("half ");
  EXPECT_EQ(LastLines(directory_, 99, 3, 100), "three\nfour\nfive\n");
}

// Of 80 lines of two thousand bytes each the first 64 KiB say nothing of the end.
TEST_F(LogsTest, TheCauseIsToldFromTheEndOfLongLines) {
  {
    shim::LogWriter log(directory_, 0, 1 << 20, 2);
    for (int i = 0; i < 100; ++i) log.Append(std::string(2000, 'x') + "\n");
    log.Append("KeyError: 'labels'\n");
  }
  std::vector<v1::WorkerExit> exits(1);
  exits[0].set_exit_code(1);
  exits[0].set_own(true);
  TellCauses(directory_, {}, /*start_ns=*/0, &exits);
  EXPECT_EQ(exits[0].detail(), "exit 1: KeyError: 'labels'");
}

TEST_F(LogsTest, ReadingLogsGoesOnFromAnOffset) {
  int64_t dropped = 0;
  shim::LogWriter log(directory_, 3, 32, 2);
  for (int i = 0; i < 6; ++i)
    log.Append("line " + std::to_string(i) + "\n");  // 28 bytes in one file, 14 in the next
  LogCursor before(directory_, 3, 0);
  EXPECT_EQ(before.Read(14, &dropped).data, "line 0\nline 1\n");
  EXPECT_EQ(before.offset(), 14);
  LogCursor after = LogCursor::At(directory_, 3, before.offset());
  EXPECT_EQ(after.Read(1000, &dropped).data, "line 2\nline 3\n");
  EXPECT_EQ(LogCursor::At(directory_, 3, after.offset()).Read(1000, &dropped).data,
            "line 4\nline 5\n");
  for (int i = 6; i < 12; ++i) log.Append("line " + std::to_string(i) + "\n");
  EXPECT_EQ(dropped, 0);
  EXPECT_EQ(LogCursor::At(directory_, 3, before.offset()).Read(7, &dropped).data, "line 4\n");
  EXPECT_EQ(dropped, 14) << "lines 2 and 3 are rotated away";
  EXPECT_EQ(LogCursor::At(directory_, 3, 1'000'000).Read(1000, &dropped).data, "");
  EXPECT_EQ(LogCursor::At(directory_, 3, INT64_MIN).Read(7, &dropped).data, "line 4\n");
}

TEST_F(LogsTest, TheCauseOfAnEndIsToldFromTheLogOfItsRank) {
  {
    shim::LogWriter log(directory_, 3, 1 << 20, 2);
    for (const char* line : {"step 1 loss 2.5\n", "KeyError: 'labels'\n"}) log.Append(line);
  }
  {
    shim::LogWriter log(directory_, 7, 1 << 20, 2);
    for (const char* line : {"Collecting nosuch\n", "ERROR: No matching distribution\n",
                             "muster: setup, line 2: pip install nosuch\n"})
      log.Append(line);
  }
  {
    shim::LogWriter log(directory_, 8, 1 << 20, 2);
    log.Append("RuntimeError: Found no NVIDIA driver on your system\n");
  }
  {
    shim::LogWriter log(directory_, 9, 1 << 20, 2);
    log.Append("touch: cannot touch '/opt/x': Read-only file system\n");
  }
  const struct {
    const char* what;
    int rank, exit_code, signal;
    bool own, oom;
    const char* detail;
    v1::Cause cause;
    const char* told;
    bool held = true;
  } kCases[] = {
      {"its log speaks of the driver", 8, 1, 0, true, false, "", v1::HOST_FAILURE,
       "exit 1: RuntimeError: Found no NVIDIA driver on your system"},
      {"the same, without devices", 8, 1, 0, true, false, "", v1::PROGRAM_ERROR,
       "exit 1: RuntimeError: Found no NVIDIA driver on your system", false},
      {"its log says it", 3, 1, 0, true, false, "", v1::PROGRAM_ERROR,
       "exit 1: KeyError: 'labels'"},
      {"a signal, and its log", 3, 0, 6, true, false, "killed by SIGABRT", v1::PROGRAM_ERROR,
       "killed by SIGABRT: KeyError: 'labels'"},
      {"success needs no cause", 3, 0, 0, true, false, "", v1::CAUSE_UNSPECIFIED, ""},
      {"what is known stays", 3, 1, 0, false, false, "program: exec x: Permission denied",
       v1::CAUSE_UNSPECIFIED, "program: exec x: Permission denied"},
      {"setup's line, and what it said", 7, 1, 0, false, false, "setup: exit 1",
       v1::CAUSE_UNSPECIFIED,
       "setup: exit 1, line 2: pip install nosuch; it said: ERROR: No matching distribution"},
      {"told once", 7, 1, 0, false, false, "setup: exit 1, line 2: x", v1::CAUSE_UNSPECIFIED,
       "setup: exit 1, line 2: x"},
      {"a setup without a word", 4, 1, 0, false, false, "setup: exit 1", v1::CAUSE_UNSPECIFIED,
       "setup: exit 1"},
      {"a signal that was sent", 3, 0, 15, false, false, "stopped: another process had failed",
       v1::CAUSE_UNSPECIFIED, "stopped: another process had failed"},
      {"of a shim of the release before", 3, 1, 0, false, false, "", v1::PROGRAM_ERROR,
       "exit 1: KeyError: 'labels'"},
      {"a rank that wrote nothing", 4, 1, 0, true, false, "", v1::PROGRAM_ERROR, ""},
      {"the driver says it", 5, 1, 0, true, false, "", v1::DEVICE_FAILURE,
       "exit 1: Xid 79 on GPU 3"},
      {"the driver said it of the attempt before", 6, 1, 0, true, false, "", v1::PROGRAM_ERROR, ""},
      {"killed without a word", 4, 0, 9, true, false, "killed by SIGKILL", v1::KILLED,
       "killed by SIGKILL"},
      {"killed by the kernel", 3, 0, 9, true, true, "killed by SIGKILL", v1::OUT_OF_MEMORY,
       "killed by SIGKILL: the kernel killed it: its memory limit was reached"},
      {"a file system of the host's", 9, 1, 0, true, false, "", v1::STORAGE_FAILURE,
       "exit 1: touch: cannot touch '/opt/x': Read-only file system"},
  };
  for (const auto& c : kCases) {
    std::vector<v1::WorkerExit> exits(1);
    exits[0].set_rank(c.rank);
    exits[0].set_exit_code(c.exit_code);
    exits[0].set_signal(c.signal);
    exits[0].set_detail(c.detail);
    exits[0].set_own(c.own);
    exits[0].set_oom(c.oom);
    const DeviceEvents events = {
        c.held, {{5, {{20, "Xid 79 on GPU 3"}}}, {6, {{19, "Xid 79 on GPU 3"}}}}, {}};
    TellCauses(directory_, events, /*start_ns=*/20, &exits);
    EXPECT_EQ(exits[0].cause(), c.cause) << c.what;
    EXPECT_EQ(exits[0].detail(), c.told) << c.what;
  }
}

// In an image it is the program that tried to write where nobody can, unless the line names what
// the host shows in there.
TEST_F(LogsTest, WhoWritesIntoAnImageMadeAMistakeAndAFailedDiskIsNone) {
  const std::string table = directory_ + "/mounts";
  std::ofstream(table) << "1 0 8:1 / / ro - ext4 /dev/sda1 ro\n"
                          "2 1 8:2 / /scratch rw,relatime - ext4 /dev/sdb1 ro,errors=remount-ro\n"
                          "3 1 8:3 / /opt rw - ext4 /dev/sdc1 rw\n"
                          "4 1 8:4 / /usr ro - ext4 /dev/sdd1 rw\n"
                          "5 1 8:5 / /over ro - ext4 /dev/sde1 ro\n"
                          "6 5 8:6 / /over rw - ext4 /dev/sdf1 rw\n";
  const DeviceEvents::Image image = {
      {"/data/jobs/7", "/data/jobs/7/train/attempt-1", "/ckpt/7", "/home/ann/project/"},
      "/home/ann/project",
      table};
  DeviceEvents::Image elsewhere = image;
  elsewhere.start = "/workspace";
  const struct {
    const char* line;
    v1::Cause cause;
    const DeviceEvents::Image* image;
  } kCases[] = {
      {"touch: cannot touch '/opt/x': Read-only file system", v1::PROGRAM_ERROR, &image},
      {"mkdir: cannot create directory '/opt/conda/x': Read-only file system", v1::PROGRAM_ERROR,
       &image},
      {"touch: cannot touch '/usr/share/x': Read-only file system", v1::PROGRAM_ERROR, &image},
      {"OSError: [Errno 30] Read-only file system: '/ckpt/7/1.pt'", v1::STORAGE_FAILURE, &image},
      {"OSError: [Errno 30] Read-only file system: '/ckpt/7'", v1::STORAGE_FAILURE, &image},
      {"OSError: [Errno 30] Read-only file system: '/ckpt/77/1.pt'", v1::PROGRAM_ERROR, &image},
      {"OSError: [Errno 30] Read-only file system: '/old/ckpt/7/x'", v1::PROGRAM_ERROR, &image},
      {"bash: /data/jobs/7/out: Read-only file system", v1::STORAGE_FAILURE, &image},
      {"open /home/ann/project/log: read-only file system", v1::STORAGE_FAILURE, &image},
      {"mkdir: cannot create directory \u2018/tmp/x\u2019: Read-only file system",
       v1::STORAGE_FAILURE, &image},
      {"OSError: [Errno 30] Read-only file system: 'out/1.pt'", v1::STORAGE_FAILURE, &image},
      {"touch: cannot touch \u2018x\u2019: Read-only file system", v1::STORAGE_FAILURE, &image},
      {"OSError: [Errno 30] Read-only file system: 'out/1.pt'", v1::PROGRAM_ERROR, &elsewhere},
      {"Error: Read-only file system (os error 30)", v1::PROGRAM_ERROR, &image},
      {"OSError: [Errno 30] Read-only file system: '/scratch/x'", v1::STORAGE_FAILURE, &image},
      {"OSError: [Errno 30] Read-only file system: '/over/x'", v1::PROGRAM_ERROR, &image},
      {"OSError: [Errno 28] No space left on device: '/opt/x'", v1::STORAGE_FAILURE, &image},
      {"mkdir: cannot create directory '/opt/conda/x': Read-only file system", v1::STORAGE_FAILURE,
       nullptr},
  };
  int32_t rank = 20;
  for (const auto& c : kCases) {
    {
      shim::LogWriter log(directory_, ++rank, 1 << 20, 2);
      log.Append(std::string(c.line) + "\n");
    }
    std::vector<v1::WorkerExit> exits(1);
    exits[0].set_rank(rank);
    exits[0].set_exit_code(1);
    exits[0].set_own(true);
    DeviceEvents events;
    if (c.image != nullptr) events.image = *c.image;
    TellCauses(directory_, events, /*start_ns=*/20, &exits);
    EXPECT_EQ(exits[0].cause(), c.cause) << c.line;
  }
}

}  // namespace
}  // namespace muster::agent
