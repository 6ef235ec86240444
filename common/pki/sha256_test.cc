#include "common/pki/sha256.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

// Of FIPS 180-4's example "abc".
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Sha256Test, OfOneTextAndOfItsPiecesIsTheSame) {
  EXPECT_EQ(Sha256Hex("abc"), kAbc);
  Sha256Stream pieces;
  for (const char* piece : {"a", "", "bc"}) pieces.Add(piece);
  EXPECT_EQ(pieces.Hex(), kAbc);
}

TEST(Sha256Test, ADigestIsSixtyFourSmallHexadecimalDigits) {
  EXPECT_TRUE(IsSha256Hex(kAbc));
  EXPECT_FALSE(IsSha256Hex(std::string(kAbc).substr(1)));
  EXPECT_FALSE(IsSha256Hex("../../../../../../../../../../../../../../../../../../../../etc/pass"));
  EXPECT_FALSE(IsSha256Hex("B" + std::string(kAbc).substr(1)));
}

}  // namespace
}  // namespace muster
