#include "trainer/checkpoint/safetensors.h"

#include <unistd.h>
#include <cstdio>

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "trainer/checkpoint/checksum.h"

namespace muster::trainer {
namespace {

// A file with this header text and data; `header_bytes` replaces the true length.
std::vector<uint8_t> File(const std::string& header, size_t data_bytes, int64_t header_bytes = -1) {
  const uint64_t length = header_bytes < 0 ? header.size() : static_cast<uint64_t>(header_bytes);
  std::vector<uint8_t> file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<uint8_t>(length >> (8 * i)));
  file.insert(file.end(), header.begin(), header.end());
  file.resize(file.size() + data_bytes, 7);
  return file;
}

TEST(MappedFile, WhatCantBeReadIsAStatus) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("mapped_test." + std::to_string(::getpid()));
  ASSERT_TRUE(WriteFileDurably(path, std::string(10000, 'x')).ok());
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path, /*for_copies=*/true);
  ASSERT_TRUE(file.ok());
  std::vector<uint8_t> out(file->bytes().size());
  EXPECT_TRUE(file->Copy(file->bytes(), out.data()).ok());
  EXPECT_EQ(out, std::vector<uint8_t>(10000, 'x'));
  std::filesystem::resize_file(
      path, 5000);  // touching the last page would end the process now, as a disk's error does
  EXPECT_EQ(file->Copy(file->bytes(), out.data()).code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(path);
}

TEST(Safetensors, MalformedFilesAreRefusedWithTheReason) {
  struct Case {
    const char* name;
    std::vector<uint8_t> file;
    const char* reason;
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const Case cases[] = {
      {"empty", {}, "shorter than 8"},
      {"header past the end", File(good, 8, 1000), "past the end"},
      {"huge header", File(good, 8, int64_t{1} << 40), "a header of"},
      {"length with the top bit", File(good, 8, std::numeric_limits<int64_t>::max()),
       "a header of"},
      {"no JSON", File("{\"a\":", 8), "not a JSON object"},
      {"a list", File("[1]", 8), "not a JSON object"},
      {"deep nesting", File(std::string(1000, '['), 8), "header"},
      {"duplicate name",
       File(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
           1),
       "twice"},
      {"unknown dtype", File(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", 8),
       "unknown dtype"},
      {"missing shape", File(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), "exactly"},
      {"extra key", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8),
       "exactly"},
      {"negative shape", File(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       "shape"},
      {"fractional shape", File(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8),
       "shape"},
      {"overflowing shape",
       File(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8),
       "overflows"},
      {"offsets past the end",
       File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 8), "outside"},
      {"truncated", File(good, 5),
       "tensor \"a\": data_offsets reach outside the file, which has 3 bytes too few"},
      {"truncated before its last tensors",
       File(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
           3),
       "tensor \"b\": data_offsets reach outside the file, which has 3 bytes too few for all of "
       "them"},
      {"offsets backwards", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
       "outside"},
      {"offsets of another size",
       File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8), "don't match"},
      {"three offsets", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8),
       "data_offsets"},
      {"overlap",
       File(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
           6),
       "overlap"},
      {"hole",
       File(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
           6),
       "hole"},
      {"bytes at the end", File(good, 9), "after the last"},
      {"metadata of numbers", File(R"({"__metadata__":{"a":1}})", 0), "strings"},
  };
  for (const Case& c : cases) {
    const absl::StatusOr<SafetensorsHeader> header = ParseSafetensors(c.file);
    ASSERT_FALSE(header.ok()) << c.name;
    EXPECT_NE(std::string(header.status().message()).find(c.reason), std::string::npos)
        << c.name << ": " << header.status();
  }
  EXPECT_TRUE(ParseSafetensors(File(good, 8)).ok());
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const std::string directory =
      std::filesystem::temp_directory_path() / ("safetensors_test." + std::to_string(::getpid()));
  ASSERT_TRUE(MakeDirectories(directory).ok());
  const std::vector<uint8_t> a = {1, 2, 3, 4, 5, 6, 7, 8}, b = {9, 10};
  const std::string path = directory + "/x.safetensors";
  const auto written =
      WriteSafetensors(path, {{"b", "U8", {2, 1}, b}, {"a", "F32", {2}, a}}, {{"format", "pt"}});
  ASSERT_TRUE(written.ok()) << written.status();
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().metadata.at("format"), "pt");
  const auto read = file->Data(file->header().tensors.at("a"));
  EXPECT_EQ(std::vector<uint8_t>(read.begin(), read.end()), a);
  EXPECT_EQ(file->header().tensors.at("b").shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(written->size_bytes, file->file().bytes().size());
  EXPECT_EQ(written->crc32c, Crc32c(file->file().bytes().data(), file->file().bytes().size()));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  ASSERT_TRUE(
      WriteFileDurably(path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
          .ok());
  EXPECT_EQ(SafetensorsFile::Open(path).status().message(),
            path + ": a Git LFS pointer, not the file itself; run `git lfs pull` there");
  ASSERT_TRUE(WriteFileDurably(path, "12345").ok());
  EXPECT_EQ(
      SafetensorsFile::Open(path).status().message(),
      path + ": not a valid safetensors file: shorter than 8 bytes; copy or download it again");
  RemoveTree(directory);
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST(Checksum, AgreesWithPublishedValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);  // RFC 3720 B.4's check value
  EXPECT_EQ(Crc32c("6789", 4, Crc32c("12345", 5)), 0xE3069283u);
  std::vector<uint8_t> many(40'000);  // long enough to be summed in several stretches, which must
                                      // give what byte after byte gives
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<uint8_t>(i * i >> 3);
  uint32_t one_by_one = 0;
  for (size_t n = 0; n < many.size(); ++n) {
    if (n % 4093 == 0 || n == 12'288 || n == 24'577)
      EXPECT_EQ(Crc32c(many.data(), n), one_by_one) << n;
    one_by_one = Crc32c(many.data() + n, 1, one_by_one);
  }
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  std::vector<uint8_t> bytes(200);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(7 * i);
  for (size_t n = 0; n <= bytes.size();
       ++n) {  // every fill of the last block, and every place to cut in
    Sha256 pieces;
    const std::span<const uint8_t> all(bytes.data(), n);
    pieces.Add(all.first(n / 3));
    pieces.Add(all.subspan(n / 3));
    EXPECT_EQ(pieces.Hex(), Sha256Hex({reinterpret_cast<const char*>(bytes.data()), n})) << n;
  }
}

}  // namespace
}  // namespace muster::trainer
