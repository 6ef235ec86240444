#include "common/objects/object_place.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace muster {
namespace {

constexpr char kForm[] = "must be s3://BUCKET/PREFIX; got ";
constexpr char kBucket[] = "where BUCKET has 3 to 63 of [a-z0-9.-]";
constexpr char kParts[] = "where no part of PREFIX is empty, ., .. or has control characters";

// What is said of a place: "" if nothing is.
struct Case {
  std::string url;
  const char* prefix;            // where a prefix is wanted
  const char* bucket_or_prefix;  // where a bucket will do
};

TEST(ObjectPlace, IsABucketAndAPrefix) {
  const Case kCases[] = {
      {"s3://acme/models", "", ""},
      {"s3://acme/models/new/", "", ""},
      {"s3://a.b-1/x y/1=é//", "", ""},
      {"s3://acme", kForm, ""},
      {"s3://acme//", kForm, ""},
      {"s3://acme/a/{{index}}/", "", ""},
      {"", kForm, kForm},
      {"/data/run", kForm, kForm},
      {"gs://acme/model", kForm, kForm},
      {"s3://", kForm, kForm},
      {"s3:///", kForm, kForm},
      {"s3:///model", kForm, kForm},
      // Stores that aren't AWS's let buckets and objects be called otherwise.
      {"s3://acme-{user}/a", kBucket, ""},
      {"s3://{user}", kForm, ""},
      {"s3://ac/model", kBucket, ""},
      {"s3://Acme_2/model", kBucket, ""},
      {"s3://" + std::string(64, 'a') + "/model", kBucket, ""},
      {"s3://acme/a//b", kParts, ""},
      {"s3://acme/a/../b", kParts, ""},
      {"s3://acme/./b", kParts, ""},
      {"s3://acme/a\n", kParts, ""},
  };
  for (const Case& c : kCases) {
    const std::pair<const char*, std::string> kSaid[] = {
        {c.prefix, WhyNoObjectPlace(c.url, ObjectPlace::kPrefix)},
        {c.bucket_or_prefix, WhyNoObjectPlace(c.url, ObjectPlace::kBucketOrPrefix)}};
    for (const auto& [wanted, said] : kSaid) {
      EXPECT_EQ(said.empty(), *wanted == '\0') << c.url << ": " << said;
      EXPECT_NE(said.find(wanted), std::string::npos) << c.url << ": " << said;
    }
  }
}

}  // namespace
}  // namespace muster
