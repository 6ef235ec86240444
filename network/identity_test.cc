// What a host keeps of having joined.
#include "network/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_replace.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

Identity Joined() {
  const Validity day{1'800'000'000, 1'800'086'400};
  const std::string root_key = NewKey();
  Identity identity;
  identity.key = NewKey();
  identity.authorities = *NewRoot(root_key, "Muster t1 1", day);
  identity.certificate = *Issue(*NewRequest(identity.key), {Holder::kHost, "t1", "lab", "h1"}, day,
                                identity.authorities, root_key);
  identity.authorities += *NewRoot(NewKey(), "Muster t1 2", day);
  identity.addresses = {"m1.example:7420", "10.0.0.2:7420"};
  identity.join_address = "m1.example:7421";
  return identity;
}

TEST(Identity, IsReadAsItWasWritten) {
  const Identity joined = Joined();
  const auto read = ReadIdentity(WriteIdentity(joined));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->addresses, joined.addresses);
  EXPECT_EQ(read->join_address, joined.join_address);
  EXPECT_EQ(read->key, joined.key);
  EXPECT_EQ(read->certificate, joined.certificate);
  EXPECT_EQ(read->authorities, joined.authorities);
  EXPECT_EQ(UriOf(read->holder), "muster://t1/host/lab/h1");
  EXPECT_EQ(read->validity.end_s, 1'800'086'400);
}

TEST(Identity, WhatIsNoneIsRefusedWithAReason) {
  const Identity joined = Joined();
  const std::string good = WriteIdentity(joined);
  Identity other_key = joined, no_authority = joined, no_address = joined;
  other_key.key = NewKey();
  no_authority.authorities = "";
  no_address.addresses.clear();
  for (const std::string& bad :
       {std::string(), std::string("x"), good.substr(0, good.size() / 2), "x" + good,
        absl::StrReplaceAll(good, {{"m1.example:7420", "m1.example"}}),
        absl::StrReplaceAll(good, {{"address", "adress"}}), good + std::string(1 << 20, 'x'),
        WriteIdentity(other_key), WriteIdentity(no_authority), WriteIdentity(no_address)}) {
    EXPECT_EQ(ReadIdentity(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Identity, ItsFileIsForItsOwnerAlone) {
  char folder[] = "/tmp/muster-identity-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/identity";
  EXPECT_EQ(LoadIdentity(path).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(SaveIdentity(path, Joined()).ok());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(LoadIdentity(path).ok());
  chmod(path.c_str(), 0644);
  EXPECT_THAT(LoadIdentity(path).status().message(), HasSubstr("chmod 0600"));
  std::filesystem::remove_all(folder);
}

TEST(Address, IsAHostAndAPort) {
  for (const char* good : {"m1:7420", "m-1.example:1", "10.0.0.2:65535"})
    EXPECT_EQ(WhyNoAddress(good), "") << good;
  for (const char* bad : {"", "m1", ":7420", "m1:", "m1:0", "m1:65536", "m1:x", "m1:-1", "m 1:7420",
                          "ipv4:10.0.0.1:7420", "m1:074200"})
    EXPECT_NE(WhyNoAddress(bad), "") << bad;
  EXPECT_EQ(WhyNoAddress("m1"), "\"m1\" is no HOST:PORT, such as m1.example:7420");
  EXPECT_EQ(WhyNoAddress("m1", 7421), "\"m1\" is no HOST:PORT, such as m1.example:7421");
}

TEST(Fingerprint, HasItsKindAnd64Digits) {
  const std::string digits(64, 'a');
  EXPECT_EQ(WhyNoFingerprint("sha256:" + digits), "");
  EXPECT_EQ(WhyNoFingerprint(ReadCertificates(Joined().authorities)->front().fingerprint), "");
  for (const std::string& bad :
       {std::string(), digits, std::string("sha256:"), std::string("sha256:00"),
        "sha256:" + digits + "a", "sha256:g" + digits.substr(1), "sha1:" + digits,
        "sha256:A" + digits.substr(1)})
    EXPECT_THAT(WhyNoFingerprint(bad), HasSubstr("64 digits")) << bad;
}

}  // namespace
}  // namespace muster
