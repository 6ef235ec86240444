#include "scheduler/store/secrets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "common/pki/seal.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using enum absl::StatusCode;

class SecretsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-secrets-XXXXXX";
    directory_ = mkdtemp(name);
    ASSERT_TRUE(Open().ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  absl::Status Open() {
    secrets_.reset();
    absl::StatusOr<std::unique_ptr<SecretStore>> store = SecretStore::Open(
        directory_ + "/secrets", [this](bool make) -> absl::StatusOr<std::string> {
          if (key_.empty() && !make) return absl::FailedPreconditionError("the key isn't there");
          if (key_.empty()) key_ = std::string(kSealKeyBytes, 'k');
          return key_;
        });
    if (!store.ok()) return store.status();
    secrets_ = *std::move(store);
    return absl::OkStatus();
  }
  // The folder where it lies.
  std::filesystem::path Damage(const std::string& name) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (entry.path().filename() != name) continue;
      std::filesystem::permissions(entry.path(), std::filesystem::perms::owner_all);
      std::ofstream(entry.path()) << "damaged";
      return entry.path().parent_path();
    }
    ADD_FAILURE() << "there is no " << name;
    return {};
  }
  std::vector<std::string> NamesOf(const std::string& owner) const {
    std::vector<std::string> names;
    for (const SecretStore::Named& secret : secrets_->List(owner)) names.push_back(secret.name);
    return names;
  }
  std::string OnDisk() const {
    std::string all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      all += entry.path().string();
      std::ifstream file(entry.path());
      if (entry.is_regular_file()) all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }

  std::string directory_, key_;
  std::unique_ptr<SecretStore> secrets_;
};

TEST_F(SecretsTest, SeveralAreSetAtOnce) {
  const std::string names[] = {"A", "B", "SAME", "SAME"};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const absl::Status set = secrets_->Set("ann", names[t], std::string(1000, 'a' + t));
        EXPECT_TRUE(set.ok()) << set;
        const absl::StatusOr<std::string> value = secrets_->Read("ann", names[t]);
        EXPECT_TRUE(value.ok()) << value.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*secrets_->Read("ann", "A"), std::string(1000, 'a'));
  EXPECT_EQ(*secrets_->Read("ann", "B"), std::string(1000, 'b'));
  EXPECT_EQ(OnDisk().find(".tmp."), std::string::npos);
}

TEST_F(SecretsTest, OneThatIsDamagedHoldsUpNoneOfTheOthersAndLeftoversGo) {
  ASSERT_TRUE(secrets_->Set("ann", "A", "one").ok());
  ASSERT_TRUE(secrets_->Set("ann", "B", "two").ok());
  std::ofstream(Damage("A") / "B.tmp.77.1") << "left by one that was killed";
  std::ofstream(directory_ + "/secrets/known.tmp.77.2") << "this one, too";
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(*secrets_->Read("ann", "B"), "two");
  EXPECT_EQ(secrets_->Read("ann", "A").status().code(), kDataLoss);
  EXPECT_EQ(secrets_->Read("ann", "C").status().code(), kNotFound);
  EXPECT_EQ(OnDisk().find(".tmp."), std::string::npos);
  ASSERT_TRUE(secrets_->Set("ann", "A", "again").ok());
  EXPECT_EQ(*secrets_->Read("ann", "A"), "again");
}

TEST_F(SecretsTest, TheOnlyOneIsDamagedAndTheKeyIsKnownAllTheSame) {
  ASSERT_TRUE(secrets_->Set("ann", "A", "one").ok());
  Damage("A");
  const std::string key = key_;
  key_ = std::string(kSealKeyBytes, 'x');
  EXPECT_THAT(std::string(Open().message()), HasSubstr("Put the master key there"));
  key_ = key;
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(secrets_->Read("ann", "A").status().code(), kDataLoss);
  ASSERT_TRUE(secrets_->Set("ann", "A", "again").ok());
  // What it is known by is damaged, or not there yet, as in a store of the release before: the
  // secrets say it, and it is there from then on.
  for (const bool there : {true, false}) {
    std::filesystem::remove(directory_ + "/secrets/known");
    if (there) std::ofstream(directory_ + "/secrets/known") << "damaged";
    ASSERT_TRUE(Open().ok());
    Damage("A");
    ASSERT_TRUE(Open().ok());
    ASSERT_TRUE(secrets_->Set("ann", "A", "again").ok());
  }
}

TEST_F(SecretsTest, WhereNoneIsLeftAnotherKeyIsAsGood) {
  ASSERT_TRUE(secrets_->Set("ann", "A", "one").ok());
  ASSERT_TRUE(secrets_->Delete("ann", "A").ok());
  key_ = std::string(kSealKeyBytes, 'x');
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(secrets_->Set("ann", "A", "two").ok());
  Damage("A");
  EXPECT_TRUE(Open().ok());
}

TEST_F(SecretsTest, AValueIsReadAgainAlsoAfterARestartAndTheNewestCounts) {
  ASSERT_TRUE(secrets_->Set("ann", "HF_TOKEN", "first").ok());
  ASSERT_TRUE(secrets_->Set("ann", "HF_TOKEN", "sesame").ok());
  ASSERT_TRUE(secrets_->Set("ann", "A", "other").ok());
  EXPECT_THAT(NamesOf("ann"), ::testing::ElementsAre("A", "HF_TOKEN"));
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(*secrets_->Read("ann", "HF_TOKEN"), "sesame");
  EXPECT_TRUE(secrets_->Delete("ann", "HF_TOKEN").ok());
  EXPECT_EQ(secrets_->Delete("ann", "HF_TOKEN").code(), kNotFound);
  EXPECT_EQ(secrets_->Read("ann", "HF_TOKEN").status().code(), kNotFound);
}

TEST_F(SecretsTest, NoValueLiesOnTheDisk) {
  ASSERT_TRUE(secrets_->Set("ann", "HF_TOKEN", "open sesame").ok());
  EXPECT_THAT(OnDisk(), Not(HasSubstr("sesame")));
}

TEST_F(SecretsTest, AnotherUsersIsNotThere) {
  ASSERT_TRUE(secrets_->Set("ann", "HF_TOKEN", "sesame").ok());
  EXPECT_FALSE(secrets_->Has("bob", "HF_TOKEN"));
  EXPECT_EQ(secrets_->Read("bob", "HF_TOKEN").status().code(), kNotFound);
  EXPECT_EQ(secrets_->Delete("bob", "HF_TOKEN").code(), kNotFound);
  EXPECT_THAT(NamesOf("bob"), ::testing::IsEmpty());
  EXPECT_TRUE(secrets_->Has("ann", "HF_TOKEN"));
}

// Who can write to the disk can't give one user's to another, or under another name.
TEST_F(SecretsTest, ASealedValueOpensNowhereElse) {
  ASSERT_TRUE(secrets_->Set("ann", "HF_TOKEN", "sesame").ok());
  ASSERT_TRUE(secrets_->Set("ann", "OTHER", "nothing").ok());
  ASSERT_TRUE(secrets_->Set("bob", "HF_TOKEN", "bobs").ok());
  std::string of_ann, of_bob;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
    if (entry.path().filename() != "HF_TOKEN") continue;
    const bool anns = std::filesystem::exists(entry.path().parent_path() / "OTHER");
    (anns ? of_ann : of_bob) = entry.path();
  }
  const auto over = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(of_ann, of_bob, over);
  EXPECT_EQ(secrets_->Read("bob", "HF_TOKEN").status().code(), kDataLoss);
  std::filesystem::copy_file(of_ann, std::filesystem::path(of_ann).parent_path() / "OTHER", over);
  EXPECT_EQ(secrets_->Read("ann", "OTHER").status().code(), kDataLoss);
}

TEST_F(SecretsTest, AnotherKeyOrNoneIsToldAtTheStart) {
  EXPECT_TRUE(Open().ok()) << "where there is none, no key is needed";
  ASSERT_TRUE(secrets_->Set("ann", "HF_TOKEN", "sesame").ok());
  key_ = std::string(kSealKeyBytes, 'x');
  EXPECT_THAT(std::string(Open().message()), HasSubstr("Put the master key there"));
  key_.clear();
  EXPECT_THAT(std::string(Open().message()), HasSubstr("the key isn't there"));
}

TEST_F(SecretsTest, WhatCanNotBeOneIsRefused) {
  for (const char* name : {"", "A-B", "1A", "../A", "A/B", ".owner"}) {
    EXPECT_EQ(secrets_->Set("ann", name, "x").code(), kInvalidArgument) << name;
    EXPECT_FALSE(secrets_->Has("ann", name)) << name;
  }
  for (const std::string& value :
       {std::string(), std::string("a\0b", 3), std::string(kMaxSecretBytes + 1, 'x')})
    EXPECT_EQ(secrets_->Set("ann", "A", value).code(), kInvalidArgument);
  EXPECT_TRUE(secrets_->Set("ann", "A", std::string(kMaxSecretBytes, 'x')).ok());
  for (size_t i = 1; i < kMaxSecrets; ++i)
    ASSERT_TRUE(secrets_->Set("ann", "A" + std::to_string(i), "x").ok());
  EXPECT_EQ(secrets_->Set("ann", "B", "x").code(), kResourceExhausted);
  EXPECT_TRUE(secrets_->Set("ann", "A", "another").ok()) << "one that is there";
}

}  // namespace
}  // namespace muster
