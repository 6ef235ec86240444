// The audit, written, read again and tampered with.
#include "scheduler/access/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace muster {
namespace {

using ::testing::HasSubstr;

class AuditTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-audit-XXXXXX";
    folder_ = std::string(::mkdtemp(name)) + "/audit";
  }
  void TearDown() override {
    std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
  }
  std::unique_ptr<Audit> Open(int64_t file_bytes = kAuditFileBytes) {
    absl::StatusOr<std::unique_ptr<Audit>> audit = Audit::Open(folder_, file_bytes);
    EXPECT_TRUE(audit.ok()) << audit.status();
    return audit.ok() ? *std::move(audit) : nullptr;
  }
  static void Fill(Audit* audit, int records) {
    for (int i = 0; i < records; ++i) {
      pb::AuditRecord record;
      record.set_user(i % 2 == 0 ? "ann" : "bob");
      record.set_method("JobService/Cancel");
      record.set_object(std::to_string(i));
      record.set_outcome(i % 3 == 0 ? "PERMISSION_DENIED" : "OK");
      audit->Add(record);
    }
    audit->Flush();
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  static std::vector<std::string> LinesOf(const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  static void Write(const std::string& path, const std::vector<std::string>& lines) {
    std::ofstream out(path, std::ios::trunc);
    for (const std::string& line : lines) out << line << "\n";
  }

  std::string folder_;
};

TEST_F(AuditTest, RecordsAreNumberedChainedAndGoOnAfterARestart) {
  Fill(Open().get(), 5);
  const std::unique_ptr<Audit> audit = Open();
  Fill(audit.get(), 5);
  const absl::StatusOr<AuditHead> head = audit->Verify(0, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->first, 1u);
  EXPECT_EQ(head->last, 10u);
  const auto newest = audit->Newest(3, [](const pb::AuditRecord& r) { return r.user() == "ann"; });
  ASSERT_TRUE(newest.ok());
  ASSERT_EQ(newest->size(), 3u);
  EXPECT_EQ((*newest)[2].number(), 10u);
  EXPECT_EQ((*newest)[2].hash(), head->hash);
}

struct Tampering {
  const char* name;
  std::function<void(std::vector<std::string>*)> change;
};

TEST_F(AuditTest, WhateverIsChangedIsFound) {
  const Tampering cases[] = {
      {"a word in the middle",
       [](std::vector<std::string>* lines) {
         std::string& line = (*lines)[3];
         line.replace(line.find("bob"), 3, "eve");
       }},
      {"a record left out", [](auto* lines) { lines->erase(lines->begin() + 4); }},
      {"two that change places", [](auto* lines) { std::swap((*lines)[2], (*lines)[3]); }},
      {"one twice", [](auto* lines) { lines->insert(lines->begin() + 2, (*lines)[2]); }},
      {"the end cut off", [](auto* lines) { lines->pop_back(); }},
      {"the beginning cut off", [](auto* lines) { lines->erase(lines->begin()); }},
      {"a hash", [](auto* lines) { (*lines)[5][0] = (*lines)[5][0] == '0' ? '1' : '0'; }},
      {"no record at all", [](auto* lines) { lines->insert(lines->begin(), "hello"); }},
  };
  for (const Tampering& c : cases) {
    std::filesystem::remove_all(folder_);
    const std::unique_ptr<Audit> audit = Open();
    Fill(audit.get(), 8);
    const std::string noted = LinesOf(Files()[0])[0].substr(0, 64);
    ASSERT_TRUE(audit->Verify(1, noted).ok());
    std::vector<std::string> lines = LinesOf(Files()[0]);
    c.change(&lines);
    Write(Files()[0], lines);
    const absl::Status found = audit->Verify(1, noted).status();
    EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss) << c.name;
    EXPECT_THAT(std::string(found.message()), HasSubstr("the audit was changed")) << c.name;
  }
}

// Nobody needs a key to make a chain anew: only a hash that was noted elsewhere tells.
TEST_F(AuditTest, AWholeNewChainIsFoundByAHashThatWasNoted) {
  std::unique_ptr<Audit> audit = Open();
  Fill(audit.get(), 4);
  const std::string noted = audit->Verify(0, "")->hash;
  audit.reset();
  std::filesystem::remove_all(folder_);
  audit = Open();
  Fill(audit.get(), 6);
  EXPECT_TRUE(audit->Verify(0, "").ok());
  EXPECT_EQ(audit->Verify(4, noted).status().code(), noted == LinesOf(Files()[0])[3].substr(0, 64)
                                                         ? absl::StatusCode::kOk
                                                         : absl::StatusCode::kDataLoss);
  EXPECT_EQ(audit->Verify(4, std::string(64, 'a')).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(AuditTest, FilesAreRotatedAndOldOnesMayBeTakenAway) {
  std::unique_ptr<Audit> audit = Open(1000);
  Fill(audit.get(), 40);
  ASSERT_GT(Files().size(), 3u);
  std::filesystem::remove(Files()[0]);
  const absl::StatusOr<AuditHead> head = audit->Verify(0, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_GT(head->first, 1u);
  EXPECT_EQ(head->last, 40u);
  std::filesystem::remove(Files()[1]);
  EXPECT_FALSE(audit->Verify(0, "").ok()) << "one out of the middle";
}

TEST_F(AuditTest, ARecordThatWasNotWrittenWholeIsCutOffAtTheNextStart) {
  Fill(Open().get(), 3);
  std::ofstream(Files()[0], std::ios::app) << "0123abc {\"num";
  const std::unique_ptr<Audit> audit = Open();
  Fill(audit.get(), 1);
  const absl::StatusOr<AuditHead> head = audit->Verify(0, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->last, 4u);
}

TEST_F(AuditTest, AStartOnOneThatWasChangedIsRefused) {
  Fill(Open().get(), 3);
  std::vector<std::string> lines = LinesOf(Files()[0]);
  lines.erase(lines.begin() + 1);
  Write(Files()[0], lines);
  EXPECT_EQ(Audit::Open(folder_).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace muster
