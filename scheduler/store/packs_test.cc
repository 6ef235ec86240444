#include "scheduler/store/packs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using enum absl::StatusCode;

class PacksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-packs-XXXXXX";
    directory_ = mkdtemp(name);
    limits_.bytes = 1000;
    limits_.owner_bytes = 2000;
    limits_.owner_uploads = 2;
    limits_.least_bytes = 1;
    Open();
  }
  void TearDown() override {
    packs_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Open() {
    packs_.reset();
    absl::StatusOr<std::unique_ptr<PackStore>> packs =
        PackStore::Open(directory_ + "/packs", limits_, &clock_);
    ASSERT_TRUE(packs.ok()) << packs.status();
    packs_ = *std::move(packs);
  }
  absl::StatusOr<int64_t> Put(const std::string& owner, const std::string& text, int64_t offset = 0,
                              size_t bytes = 10'000) {
    const std::string_view piece = std::string_view(text).substr(static_cast<size_t>(offset));
    return packs_->Put(owner, Sha256Hex(text), static_cast<int64_t>(text.size()), offset,
                       piece.substr(0, bytes));
  }
  absl::StatusOr<std::string> Read(const std::string& owner, const std::string& text) {
    absl::StatusOr<PackStore::Piece> piece = packs_->Read(owner, Sha256Hex(text), 0);
    if (!piece.ok()) return piece.status();
    EXPECT_EQ(piece->size, static_cast<int64_t>(piece->data.size()));
    return piece->data;
  }
  size_t Files() const {
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_))
      files += entry.is_regular_file() ? 1 : 0;
    return files;
  }

  std::string directory_;
  PackLimits limits_;
  ManualClock clock_;
  std::unique_ptr<PackStore> packs_;
};

TEST_F(PacksTest, WhatCameInPiecesIsReadAsAWholeAlsoAfterARestart) {
  const std::string text = "0123456789";
  EXPECT_EQ(*packs_->Put("ann", Sha256Hex(text), 10, 0, ""), 0) << "nothing of it is here";
  EXPECT_EQ(*Put("ann", text, 0, 4), 4);
  EXPECT_EQ(Read("ann", text).status().code(), kNotFound) << "it isn't whole";
  EXPECT_EQ(*Put("ann", text, 6, 4), 4) << "it isn't the next piece";
  EXPECT_EQ(*Put("ann", text, 0, 4), 4) << "repeated: its answer was lost";
  EXPECT_EQ(*Put("ann", text, 4), 10);
  EXPECT_EQ(*Read("ann", text), text);
  EXPECT_EQ(*Put("ann", text, 0, 4), 10) << "it is here already";
  Open();
  EXPECT_EQ(*Read("ann", text), text);
  EXPECT_EQ(packs_->Read("ann", Sha256Hex(text), 7)->data, "789");
  EXPECT_EQ(packs_->Read("ann", Sha256Hex(text), 70)->data, "");
}

TEST_F(PacksTest, WhatWasComingWhenTheProcessEndedComesAnew) {
  EXPECT_EQ(*Put("ann", "0123456789", 0, 4), 4);
  EXPECT_EQ(Files(), 1u);
  Open();
  EXPECT_EQ(Files(), 0u);
  EXPECT_EQ(*Put("ann", "0123456789", 4), 0);
  EXPECT_EQ(*Put("ann", "0123456789"), 10);
}

// By its digest alone nobody gets, names or learns of what another has sent.
TEST_F(PacksTest, AnotherUsersIsNotThere) {
  ASSERT_EQ(*Put("ann", "of ann"), 6);
  EXPECT_EQ(Read("bob", "of ann").status().code(), kNotFound);
  EXPECT_FALSE(packs_->Use("bob", Sha256Hex("of ann")));
  EXPECT_EQ(*packs_->Put("bob", Sha256Hex("of ann"), 6, 0, ""), 0) << "as if nobody had it";
  EXPECT_EQ(Read("", "of ann").status().code(), kNotFound);
  EXPECT_EQ(Read("ann/../bob", "of ann").status().code(), kNotFound);
  EXPECT_TRUE(packs_->Use("ann", Sha256Hex("of ann")));
}

TEST_F(PacksTest, WhatIsNoDigestNamesNothing) {
  for (const std::string& digest :
       {std::string(), std::string(64, 'Z'), std::string(63, 'a'), "../" + std::string(61, 'a')}) {
    EXPECT_EQ(packs_->Put("ann", digest, 6, 0, "of ann").status().code(), kInvalidArgument);
    EXPECT_FALSE(packs_->Use("ann", digest));
    EXPECT_EQ(packs_->Read("ann", digest, 0).status().code(), kNotFound);
  }
  EXPECT_EQ(Files(), 0u);
}

TEST_F(PacksTest, WhatIsNotWhatItsDigestNamesIsDropped) {
  EXPECT_EQ(packs_->Put("ann", Sha256Hex("mine"), 5, 0, "other").status().code(), kInvalidArgument);
  EXPECT_EQ(Files(), 0u);
  EXPECT_FALSE(packs_->Use("ann", Sha256Hex("mine")));
}

TEST_F(PacksTest, PiecesHaveToLieWithinTheWhole) {
  const std::string digest = Sha256Hex("mine");
  const struct {
    int64_t size, offset;
    std::string data;
  } wrong[] = {{0, 0, ""}, {-1, 0, ""}, {1001, 0, "m"}, {4, 5, ""}, {4, 2, "ine"}, {4, -1, "m"}};
  for (const auto& piece : wrong) {
    EXPECT_EQ(packs_->Put("ann", digest, piece.size, piece.offset, piece.data).status().code(),
              kInvalidArgument)
        << piece.size << " " << piece.offset;
  }
  ASSERT_EQ(*packs_->Put("ann", digest, 4, 0, "mi"), 2);
  EXPECT_EQ(packs_->Put("ann", digest, 5, 2, "ne").status().code(), kInvalidArgument);
}

TEST_F(PacksTest, AUserHasSoMuchTogetherAndIsToldTheRemedy) {
  ASSERT_TRUE(Put("ann", std::string(1000, 'a')).ok());
  ASSERT_EQ(*Put("ann", std::string(900, 'b'), 0, 10), 10) << "it counts as a whole by now";
  packs_->Collect({{"ann", Sha256Hex(std::string(1000, 'a'))}}, kHour);
  const absl::Status full = Put("ann", std::string(200, 'c')).status();
  EXPECT_EQ(full.code(), kResourceExhausted);
  for (const char* remedy : {".musterignore", "--workdir", "packed_per_user"})
    EXPECT_THAT(std::string(full.message()), HasSubstr(remedy));
  EXPECT_TRUE(Put("bob", std::string(1000, 'a')).ok()) << "each user has a quota of their own";
  EXPECT_EQ(*Put("ann", std::string(900, 'b'), 10), 900);
}

TEST_F(PacksTest, FewComeAtOnceAndThoseThatStandStillGo) {
  EXPECT_EQ(*Put("ann", "first one", 0, 1), 1);
  EXPECT_EQ(*Put("ann", "second one", 0, 1), 1);
  EXPECT_EQ(Put("ann", "third one", 0, 1).status().code(), kUnavailable);
  clock_.now_ns += limits_.upload_ns + 1;
  EXPECT_EQ(*Put("ann", "third one", 0, 1), 1);
  EXPECT_EQ(Files(), 1u);
}

TEST_F(PacksTest, WhatNoJobNeedsGoesAfterItsTime) {
  for (const char* text : {"kept", "used", "gone"}) ASSERT_TRUE(Put("ann", text).ok());
  ASSERT_TRUE(Put("bob", "gone").ok());
  const std::set<PackName> kept = {{"ann", Sha256Hex("kept")}};
  clock_.now_ns += kHour;
  EXPECT_EQ(packs_->Collect(kept, kHour), 0) << "no older than that";
  clock_.now_ns += 1;
  ASSERT_TRUE(packs_->Use("ann", Sha256Hex("used"))) << "a job that isn't in State yet";
  EXPECT_EQ(packs_->Collect(kept, kHour), 2);
  EXPECT_TRUE(Read("ann", "kept").ok());
  EXPECT_TRUE(Read("ann", "used").ok());
  EXPECT_EQ(Read("ann", "gone").status().code(), kNotFound);
  clock_.now_ns += kHour;
  EXPECT_EQ(packs_->Collect({}, kHour), 0) << "its job was there an hour ago";
  clock_.now_ns += 1;
  EXPECT_EQ(packs_->Collect({}, kHour), 2);
  EXPECT_EQ(Files(), 0u);
  ASSERT_TRUE(Put("ann", "again").ok());
}

TEST_F(PacksTest, TheOldestThatNoJobNeedsMakeRoom) {
  for (const char c : {'a', 'b', 'c', 'd'}) {
    ASSERT_TRUE(Put("ann", std::string(500, c)).ok());
    clock_.now_ns += kSecond;
  }
  const auto has = [&](char c) { return Read("ann", std::string(500, c)).ok(); };
  const std::set<PackName> needed = {{"ann", Sha256Hex(std::string(500, 'a'))}};
  EXPECT_FALSE(Put("ann", std::string(500, 'e')).ok()) << "what jobs need isn't known yet";
  packs_->Collect(needed, kDay);
  EXPECT_FALSE(Put("ann", std::string(500, 'e')).ok()) << "their jobs may be on their way";
  clock_.now_ns += 2 * kHour;
  packs_->Collect(needed, kDay);
  EXPECT_TRUE(Put("ann", std::string(700, 'e')).ok());
  EXPECT_TRUE(has('a')) << "a job needs it";
  EXPECT_FALSE(has('b') || has('c'));
  EXPECT_TRUE(has('d')) << "there was room enough without it";
}

TEST_F(PacksTest, TheirNumberIsBoundAndASmallOneCountsAsABlock) {
  limits_.owner_packs = 3;
  Open();
  for (const char* text : {"1", "2", "3"}) ASSERT_TRUE(Put("ann", text).ok());
  EXPECT_EQ(Put("ann", "4").status().code(), kResourceExhausted);
  limits_.owner_packs = 1000;
  limits_.least_bytes = 700;
  Open();
  EXPECT_EQ(Put("ann", "4").status().code(), kResourceExhausted) << "four times 700 are above 2000";
}

TEST_F(PacksTest, OneThatWasDamagedOnDiskIsGoneAndCanBeSentAgain) {
  for (const bool by_reading : {true, false}) {
    ASSERT_EQ(*Put("ann", "0123456789"), 10);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (entry.is_regular_file()) std::ofstream(entry.path()) << "01234x6789";
    }
    Open();
    if (by_reading) {
      EXPECT_EQ(Read("ann", "0123456789").status().code(), kNotFound);
    } else {
      EXPECT_FALSE(packs_->Use("ann", Sha256Hex("0123456789")));
    }
    EXPECT_EQ(*Put("ann", "0123456789", 0, 4), 4) << "as if it had never come";
    EXPECT_EQ(*Put("ann", "0123456789", 4), 10);
    EXPECT_EQ(*Read("ann", "0123456789"), "0123456789");
  }
}

// What a check reads is no file here but a pipe: so it is at it for as long as the test wants.
TEST_F(PacksTest, OneThatIsSentAgainWhileTheDamagedOneIsStillReadStays) {
  const std::string text = "0123456789",
                    path = directory_ + "/packs/" + Sha256Hex("ann") + "/" + Sha256Hex(text);
  ASSERT_EQ(*Put("ann", text), 10);
  Open();
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  bool whole = false;
  std::thread check([&] { whole = packs_->Use("ann", Sha256Hex(text)); });
  std::ofstream damaged(path);  // waits for its reader
  std::filesystem::remove(path);
  ASSERT_EQ(*Put("ann", text), 10);
  damaged << "01234x6789";
  damaged.close();
  check.join();
  EXPECT_TRUE(whole);
  EXPECT_EQ(*Read("ann", text), text);
}

TEST(PacksOfTest, AreThoseOfAllJobsAndTasksByOwner) {
  LabWithOneHost lab;
  for (const char* owner : {"ann", "bob"}) {
    pb::Event event;
    pb::JobSubmitted* submitted = event.mutable_job_submitted();
    submitted->set_uid(std::string(32, owner[0]));
    submitted->set_number(lab.engine.Snapshot()->state.next_job_number());
    submitted->set_owner(owner);
    *submitted->mutable_spec() = OneSlotSpec();
    submitted->mutable_spec()->mutable_tasks(0)->set_workdir_digest(Sha256Hex("same"));
    *submitted->mutable_spec()->add_tasks() = OneSlotSpec().tasks(0);
    submitted->mutable_spec()->mutable_tasks(1)->set_name("second");
    lab.engine.Post(event);
    lab.engine.Step();
  }
  EXPECT_THAT(
      PacksOf(lab.engine.Snapshot()->state),
      UnorderedElementsAre(PackName{"ann", Sha256Hex("same")}, PackName{"bob", Sha256Hex("same")}));
}

}  // namespace
}  // namespace muster
