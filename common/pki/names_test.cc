#include "common/pki/names.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(Holder, IsReadFromWhatItIsWrittenAs) {
  for (const Holder& holder :
       {Holder{Holder::kServer, "t1", "", ""}, Holder{Holder::kUser, "t1", "", "u42"},
        Holder{Holder::kUser, "t1", "", "u42", "00ff"},
        Holder{Holder::kHost, "t1", "lab", "h7.rack-2"},
        Holder{Holder::kHost, "t1", "anns", "ws", "", "ann"}}) {
    const auto read = ParseHolder(UriOf(holder));
    ASSERT_TRUE(read.has_value()) << UriOf(holder);
    EXPECT_EQ(*read, holder);
  }
}

TEST(Holder, AnythingElseIsNobody) {
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
        "muster://t1/user/a/token",
        "muster://t1/user/a/token/",
        "muster://t1/user/a/token/b/c",
        "muster://t1/user/a/b/token",
        "muster://t1/host/a/token/b",
        "muster://t1/host/lab",
        "muster://t1/host//h7",
        "muster://t1/host/lab/h7/x",
        "muster://t1/host/lab/h7/only",
        "muster://t1/host/lab/h7/only/",
        "muster://t1/host/lab/h7/only/ann/x",
        "muster://t1/host/lab/h7/token/ann",
        "muster://t1/user/ann/only/bob",
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
    EXPECT_FALSE(ParseHolder(uri).has_value()) << uri;
  }
  EXPECT_FALSE(ParseHolder(std::string_view("muster://t1/user/ann\0bob", 24)).has_value());
}

}  // namespace
}  // namespace muster
