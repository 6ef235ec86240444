#include "common/pki/seal.h"

#include "common/pki/tokens.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(Seal, OpensWithItsKeyInItsContextUnchanged) {
  const std::string key = NewSealKey(), other = NewSealKey();
  const std::string sealed = Seal(key, "secret 7", "swordfish");
  EXPECT_EQ(*Unseal(key, "secret 7", sealed), "swordfish");
  EXPECT_EQ(*Unseal(key, "", Seal(key, "", "")), "");
  EXPECT_FALSE(Unseal(other, "secret 7", sealed).ok());
  EXPECT_FALSE(Unseal(key, "secret 8", sealed).ok());
  EXPECT_NE(Seal(key, "secret 7", "swordfish"), sealed) << "each has a nonce of its own";
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(Unseal(key, "secret 7", changed).ok()) << "byte " << i;
    EXPECT_FALSE(Unseal(key, "secret 7", sealed.substr(0, i)).ok()) << "cut at " << i;
  }
}

TEST(Token, IsReadFromWhatItIsWrittenAs) {
  const Token token = NewToken();
  const auto read = ParseToken(token.Text());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->id, token.id);
  EXPECT_TRUE(HasSecret(*read, SecretHash(token)));
  EXPECT_NE(NewToken().Text(), token.Text());
  EXPECT_EQ(SecretHash(token).find(token.secret), std::string::npos);
}

TEST(Token, WithAnotherSecretOrAnotherFormIsNone) {
  const Token token = NewToken();
  Token forged = token;
  forged.secret = NewToken().secret;
  EXPECT_FALSE(HasSecret(forged, SecretHash(token)));
  EXPECT_FALSE(HasSecret(token, ""));
  const std::string text = token.Text();
  for (const std::string& bad :
       {std::string(), std::string("mst_"), text + "x", text.substr(1), "MST" + text.substr(3),
        text.substr(0, text.size() - 1), "mst_" + std::string(16, 'G') + text.substr(20),
        text.substr(0, 20) + "-" + text.substr(21), text.substr(0, 30) + "!" + text.substr(31)}) {
    EXPECT_FALSE(ParseToken(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace muster
