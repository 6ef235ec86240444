#include "scheduler/api/secret_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/pki/seal.h"
#include "scheduler/store/secrets.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class CheckSecretsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-check-secrets-XXXXXX";
    directory_ = mkdtemp(name);
    store_ = *SecretStore::Open(directory_, [](bool) { return std::string(kSealKeyBytes, 'k'); });
    context_.secrets = store_.get();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  std::unique_ptr<SecretStore> store_;
  ApiContext context_;
  pb::JobSpec spec_;
};

TEST_F(CheckSecretsTest, TheyHaveToBeThere) {
  ASSERT_TRUE(store_->Set("ann", "A", "x").ok());
  spec_.add_secrets("A");
  spec_.add_secrets("B=C");
  const std::vector<FieldProblem> problems = CheckSecrets(context_, "ann", spec_);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "secrets[1]");
  EXPECT_THAT(problems[0].message, HasSubstr("muster secret set B"));
  EXPECT_EQ(CheckSecrets(context_, "bob", spec_).size(), 2u);
}

// 1536 KiB together with the job's variables: 47 of 32 KiB are, 48 are not.
TEST_F(CheckSecretsTest, TheyHaveToFitIntoAProcesssVariables) {
  for (int i = 0; i < 47; ++i) {
    const std::string name = absl::StrCat("A", i);
    ASSERT_TRUE(store_->Set("ann", name, std::string(kMaxSecretBytes, 'x')).ok());
    spec_.add_secrets(name);
  }
  EXPECT_TRUE(CheckSecrets(context_, "ann", spec_).empty());
  (*spec_.mutable_env())["LARGE"] = std::string(32 << 10, 'x');
  const std::vector<FieldProblem> problems = CheckSecrets(context_, "ann", spec_);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "secrets");
  EXPECT_THAT(problems[0].message, HasSubstr("1.5MiB"));
  EXPECT_THAT(problems[0].message, HasSubstr("name fewer"));
}

}  // namespace
}  // namespace muster
