// The audit, written, read again and tampered with.
#include "scheduler/access/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Stands still until it is set.
class AuditClock : public Clock {
 public:
  int64_t WallNs() override { return wall_ns; }
  int64_t MonotonicNs() override { return steady_ns; }
  int64_t BootNs() override { return steady_ns; }
  std::atomic<int64_t> wall_ns = 1'000 * kDay, steady_ns = kDay;
};

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
    AuditOptions options;
    options.file_bytes = file_bytes;
    return OpenWith(options);
  }
  std::unique_ptr<Audit> OpenWith(AuditOptions options) {
    options.clock = &clock_;
    absl::StatusOr<std::unique_ptr<Audit>> audit = Audit::Open(folder_, options);
    EXPECT_TRUE(audit.ok()) << audit.status();
    return audit.ok() ? *std::move(audit) : nullptr;
  }
  void Fill(Audit* audit, int records) const {
    for (int i = 0; i < records; ++i) {
      pb::AuditRecord record;
      record.set_at_ns(clock_.wall_ns);
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
  static pb::AuditRecord Denial(const std::string& user, const std::string& method,
                                const std::string& object) {
    pb::AuditRecord record;
    record.set_user(user);
    record.set_method(method);
    record.set_object(object);
    record.set_outcome("NOT_FOUND");
    record.set_detail("nothing for you");
    return record;
  }
  // "ann JobService/Get 7" of all that are there.
  static std::vector<std::string> Told(Audit* audit) {
    std::vector<std::string> told;
    const auto records = audit->Newest(100'000, [](const pb::AuditRecord&) { return true; });
    EXPECT_TRUE(records.ok()) << records.status();
    if (!records.ok()) return told;
    for (const pb::AuditRecord& r : *records)
      told.push_back(absl::StrCat(r.user(), " ", r.method(), " ", r.object()));
    return told;
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

  AuditClock clock_;
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

// As by age and size, beside whoever reads.
TEST_F(AuditTest, FilesThatGoWhileTheyAreReadAreNoChange) {
  const struct {
    const char* name;
    std::vector<size_t> gone;  // while the first is read
    bool good;
  } cases[] = {{"the first", {0}, true},
               {"the first two", {0, 1}, true},
               {"the first three", {0, 1, 2}, true},
               {"the second alone", {1}, false},
               {"the first and the third", {0, 2}, false}};
  for (const auto& c : cases) {
    std::filesystem::remove_all(folder_);
    Fill(Open(1000).get(), 40);
    const std::vector<std::string> files = Files();
    ASSERT_GT(files.size(), 4u);
    uint64_t last = 0;
    const absl::StatusOr<AuditHead> head = ReadAudit(folder_, [&](const pb::AuditRecord& record) {
      last = record.number();
      if (last != 1) return;
      for (const size_t file : c.gone) std::filesystem::remove(files[file]);
    });
    EXPECT_EQ(head.ok(), c.good) << c.name << ": " << head.status();
    if (c.good) {
      EXPECT_EQ(last, 40u) << c.name;
    }
  }
}

// The first file that is left is called by the hash before it: its first record has that, too.
TEST_F(AuditTest, WhatIsChangedInTheFirstFileThatIsLeftIsFound) {
  const Tampering cases[] = {
      {"a word of its first record",
       [](auto* lines) {
         std::string& line = lines->front();
         line.replace(line.find("JobService"), 3, "Pod");
       }},
      {"its first record cut off", [](auto* lines) { lines->erase(lines->begin()); }},
      {"a word of its last", [](auto* lines) { lines->back().replace(70, 1, "#"); }},
      {"one that nobody wrote", [](auto* lines) { lines->push_back(lines->back()); }},
  };
  for (const Tampering& c : cases) {
    std::filesystem::remove_all(folder_);
    const std::unique_ptr<Audit> audit = Open(1000);
    Fill(audit.get(), 40);
    std::filesystem::remove(Files()[0]);
    ASSERT_TRUE(audit->Verify(0, "").ok()) << c.name;
    const std::string path = Files()[0];
    std::vector<std::string> lines = LinesOf(path);
    c.change(&lines);
    Write(path, lines);
    EXPECT_EQ(audit->Verify(0, "").status().code(), absl::StatusCode::kDataLoss) << c.name;
  }
  std::filesystem::rename(Files()[0], folder_ + "/00000000000000000003.audit");
  EXPECT_FALSE(Open()->Verify(0, "").ok()) << "called by another number";
}

TEST_F(AuditTest, WhatIsAddedBehindTheLastRecordIsFound) {
  const std::unique_ptr<Audit> audit = Open();
  Fill(audit.get(), 3);
  std::ofstream(Files()[0], std::ios::app) << LinesOf(Files()[0])[2] << "\n";
  EXPECT_EQ(audit->Verify(0, "").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(AuditTest, TheOldestFilesGoBySizeAndWhatIsLeftIsAChain) {
  AuditOptions options;
  options.most_bytes = 16'000;
  std::unique_ptr<Audit> audit = OpenWith(options);
  Fill(audit.get(), 1);
  const std::string first = audit->Verify(0, "")->hash;
  for (int round = 0; round < 10; ++round) {
    clock_.steady_ns += kMinute;
    Fill(audit.get(), 40);
    int64_t bytes = 0;
    for (const std::string& path : Files())
      bytes += static_cast<int64_t>(std::filesystem::file_size(path));
    EXPECT_EQ(audit->bytes(), bytes);
    EXPECT_LE(bytes, options.most_bytes + options.most_bytes / 16 + 1'000);
  }
  const absl::StatusOr<AuditHead> head = audit->Verify(0, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_GT(head->first, 1u);
  EXPECT_GT(head->last, 400u) << "each removal is a record, too";
  const absl::Status gone = audit->Verify(1, first).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound) << gone;
  const auto removed =
      audit->Newest(1, [](const pb::AuditRecord& r) { return r.method() == "Audit/Remove"; });
  ASSERT_TRUE(removed.ok());
  ASSERT_EQ(removed->size(), 1u);
  EXPECT_THAT((*removed)[0].object(), HasSubstr(absl::StrCat("to ", head->first - 1)));
  EXPECT_THAT((*removed)[0].detail(), HasSubstr("audit_size"));
  audit.reset();
  audit = OpenWith(options);
  EXPECT_TRUE(audit->Verify(head->last, head->hash).ok()) << "it goes on";
}

TEST_F(AuditTest, TheOldestFilesGoByAge) {
  AuditOptions options;
  options.retention_ns = 32 * kDay;
  const std::unique_ptr<Audit> audit = OpenWith(options);
  for (int day = 0; day < 100; ++day) {
    Fill(audit.get(), 1);
    clock_.wall_ns += kDay;
    clock_.steady_ns += kDay;
  }
  audit->Flush();
  const absl::StatusOr<AuditHead> head = audit->Verify(0, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_GT(head->last, 100u);
  const auto all = audit->Newest(1000, [](const pb::AuditRecord&) { return true; });
  ASSERT_TRUE(all.ok());
  EXPECT_GE(all->front().at_ns(), clock_.wall_ns - 36 * kDay);
  EXPECT_LE(all->front().at_ns(), clock_.wall_ns - 30 * kDay);
}

TEST_F(AuditTest, OfManyDenialsTheFirstAreWrittenAndTheOthersCounted) {
  const std::unique_ptr<Audit> audit = Open();
  std::vector<std::string> want;
  for (int i = 0; i < kAuditWhole; ++i) {
    audit->Add(Denial("ann", "JobService/Get", absl::StrCat(i)));
    want.push_back(absl::StrCat("ann JobService/Get ", i));
  }
  int counted = 0;
  for (int i = 0; i < 1000; ++i) {
    audit->Add(Denial("ann", "JobService/Get", absl::StrCat(i)),
               [&](const absl::Status& status) { counted += status.ok() ? 1 : 0; });
  }
  EXPECT_EQ(counted, 1000) << "told at once";
  audit->Add(Denial("ann", "JobService/Cancel", "9"));
  audit->Add(Denial("bob", "JobService/Get", "1"));
  pb::AuditRecord done = Denial("ann", "JobService/Submit", "");
  done.set_outcome("OK");
  audit->Add(done);
  want.emplace_back("bob JobService/Get 1");
  want.emplace_back("ann JobService/Submit ");
  EXPECT_EQ(Told(audit.get()), want) << "others' denials, and what is granted, as ever";
  clock_.steady_ns += kMinute;
  want.emplace_back("ann JobService/Cancel 9");
  want.emplace_back("ann JobService/Get 1000 more");
  EXPECT_EQ(Told(audit.get()), want);
  const auto last = audit->Newest(1, [](const pb::AuditRecord&) { return true; });
  EXPECT_EQ((*last)[0].detail(),
            "1000 more in the same minute, of 0, 1, 2, 3, 4, 5, 6, 7 and others; the last: nothing "
            "for you");
  EXPECT_EQ((*last)[0].outcome(), "NOT_FOUND");
  audit->Add(Denial("ann", "JobService/Get", "7"));
  want.emplace_back("ann JobService/Get 7");
  EXPECT_EQ(Told(audit.get()), want) << "another minute";
  EXPECT_TRUE(audit->Verify(0, "").ok());
}

TEST_F(AuditTest, OfConnectionsOneAMinuteIsWritten) {
  std::unique_ptr<Audit> audit = Open();
  const std::string user = "address ipv4:10.0.0.9";
  for (int i = 0; i < 5; ++i)
    audit->AddConnection(Denial(user, "Network/Connect", absl::StrCat("ipv4:10.0.0.9:", i)));
  EXPECT_THAT(Told(audit.get()), ElementsAre(user + " Network/Connect ipv4:10.0.0.9:0"));
  audit.reset();
  EXPECT_THAT(Told(Open().get()), ElementsAre(user + " Network/Connect ipv4:10.0.0.9:0",
                                              user + " Network/Connect 4 more"))
      << "a stop tells what is counted";
}

TEST_F(AuditTest, OfTooManyStrangersTheOthersAreCountedTogetherAndHideNoUser) {
  const std::unique_ptr<Audit> audit = Open();
  for (size_t i = 0; i < kAuditStrangersMost + 50; ++i)
    audit->AddConnection(Denial(absl::StrCat("address ", i), "Network/Connect", ""));
  audit->Add(Denial("ann", "JobService/Get", "1"));
  EXPECT_EQ(Told(audit.get()).size(), kAuditStrangersMost + 1);
  clock_.steady_ns += kMinute;
  const std::vector<std::string> told = Told(audit.get());
  EXPECT_EQ(told.size(), kAuditStrangersMost + 2);
  const auto last = audit->Newest(1, [](const pb::AuditRecord&) { return true; });
  EXPECT_EQ((*last)[0].outcome(), "LEFT_OUT");
  EXPECT_THAT((*last)[0].detail(), HasSubstr("50 denials"));
}

// One machine may have any number of addresses, and of uids that nobody knows.
TEST_F(AuditTest, StrangersFillNoFileHoweverManyTheyAre) {
  for (const bool addresses : {true, false}) {
    std::filesystem::remove_all(folder_);
    const std::unique_ptr<Audit> audit = Open();
    const auto from = [&](uint32_t uid) {
      pb::AuditRecord denial =
          Denial(addresses ? absl::StrCat("address ", uid) : "", "JobService/Get", "1");
      denial.set_uid(uid);
      return denial;
    };
    constexpr size_t kStrangers = 100;
    for (uint32_t uid = 1; uid <= kStrangers; ++uid) {
      for (int64_t i = 0; i < kAuditWhole; ++i) audit->Add(from(uid));
    }
    audit->Add(from(1));
    for (int i = 0; i < 2; ++i) audit->Add(Denial("ann", "JobService/Get", "2"));
    const std::vector<std::string> told = Told(audit.get());
    EXPECT_EQ(told.size(), kAuditOfStrangers + 2);
    EXPECT_EQ(told.back(), "ann JobService/Get 2") << "users are told as ever";
    clock_.steady_ns += kMinute;
    EXPECT_EQ(Told(audit.get()).size(), kAuditOfStrangers + 3);
    const auto last = audit->Newest(1, [](const pb::AuditRecord&) { return true; });
    const size_t denials = kStrangers * static_cast<size_t>(kAuditWhole) + 1;
    EXPECT_THAT((*last)[0].detail(),
                HasSubstr(absl::StrCat(denials - kAuditOfStrangers, " denials")));
    audit->Add(from(1));
    EXPECT_EQ(Told(audit.get()).size(), kAuditOfStrangers + 4) << "another minute";
  }
}

TEST_F(AuditTest, UidsThatNobodyKnowsTakeNoUsersRoom) {
  const std::unique_ptr<Audit> audit = Open();
  for (uint32_t uid = 1; uid <= kAuditUsersMost; ++uid) {
    pb::AuditRecord denial = Denial("", "JobService/Get", "1");
    denial.set_uid(100'000 + uid);
    audit->Add(denial);
  }
  audit->Add(Denial("ann", "JobService/Get", "2"));
  EXPECT_EQ(Told(audit.get()).back(), "ann JobService/Get 2");
}

TEST_F(AuditTest, LongTextIsShortened) {
  const std::unique_ptr<Audit> audit = Open();
  audit->Add(Denial("ann", "JobService/Get", std::string(300'000, 'x')));
  audit->Flush();
  EXPECT_LT(audit->bytes(), 3'000);
}

TEST_F(AuditTest, MalformedTextIsReadAgain) {
  const std::unique_ptr<Audit> audit = Open();
  audit->Add(Denial("ann", "JobService/Get", "caf\xc3"));
  EXPECT_THAT(Told(audit.get()), ElementsAre("ann JobService/Get caf?"));
  EXPECT_TRUE(audit->Verify(0, "").ok());
}

// Of releases before: without the hash before it in the name of a file.
TEST_F(AuditTest, FilesOfReleasesBeforeAreReadAndGoOn) {
  Fill(Open(1000).get(), 20);
  for (const std::string& path : Files()) {
    const std::string name = std::filesystem::path(path).filename();
    std::filesystem::rename(path, absl::StrCat(folder_, "/", name.substr(0, 20), ".audit"));
  }
  const std::unique_ptr<Audit> audit = Open(1000);
  Fill(audit.get(), 20);
  EXPECT_EQ(audit->Verify(0, "")->last, 40u);
  std::filesystem::remove(Files()[0]);
  EXPECT_GT(audit->Verify(0, "")->first, 1u);
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
