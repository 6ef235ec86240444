#include "common/pki/names.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(Principal, IsReadFromWhatItIsWrittenAs) {
  for (const Principal& principal :
       {Principal{Principal::kServer, "t1", "", ""}, Principal{Principal::kUser, "t1", "", "u42"},
        Principal{Principal::kHost, "t1", "lab", "h7.rack-2"}}) {
    const auto read = ParsePrincipal(UriOf(principal));
    ASSERT_TRUE(read.has_value()) << UriOf(principal);
    EXPECT_EQ(*read, principal);
  }
}

TEST(Principal, AnythingElseIsNobody) {
  for (const char* uri :
       {"",
        "muster://",
        "muster://t1",
        "muster://t1/",
        "muster://t1/server/",
        "muster://t1/server/x",
        "muster://t1/user",
        "muster://t1/user/",
        "muster://t1/user/a/b",
        "muster://t1/host/lab",
        "muster://t1/host//h7",
        "muster://t1/host/lab/h7/x",
        "muster://t1/host/lab/..",
        "muster://t1/user/ann%2Fbob",
        "muster://t1/user/ann bob",
        "muster://t1/admin/ann",
        "https://t1/user/ann",
        "MUSTER://t1/user/ann",
        " muster://t1/user/ann",
        "muster://t1/user/ann\n",
        "muster:///user/ann",
        "muster://t1/user/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    EXPECT_FALSE(ParsePrincipal(uri).has_value()) << uri;
  }
  EXPECT_FALSE(ParsePrincipal(std::string_view("muster://t1/user/ann\0bob", 24)).has_value());
}

}  // namespace
}  // namespace muster
