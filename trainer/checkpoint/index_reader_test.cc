#include "trainer/checkpoint/index_reader.h"

#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

json Piece(int file, int64_t tensor_begin, int64_t file_begin, int64_t numel) {
  return {{"file", file},
          {"flat", 0},
          {"tensor_begin", tensor_begin},
          {"file_begin", file_begin},
          {"numel", numel}};
}

json Good() {
  return {{"format", kCheckpointFormat},
          {"step", 3},
          {"next_sequence", 24},
          {"seed", -7},
          {"packing_version", 0},
          {"data_fingerprint", "a"},
          {"zero_stage", 1},
          {"dtype", "fp32"},
          {"model", json::object()},
          {"trainer", nullptr},
          {"files",
           {{{"name", "r0"}, {"size_bytes", 64}, {"crc32c", 4294967295}},
            {{"name", "r1"}, {"size_bytes", 64}, {"crc32c", 0}}}},
          {"tensors",
           {{"w", {{"shape", {3, 4}}, {"pieces", {Piece(1, 8, 0, 4), Piece(0, 0, 0, 8)}}}},
            {"v", {{"shape", {2}}, {"pieces", {Piece(0, 0, 8, 2)}}}}}}};
}

json& PieceOfW(json& index, int piece) { return index["tensors"]["w"]["pieces"][piece]; }

TEST(ReadIndex, GivesWhatWasWritten) {
  const absl::StatusOr<CheckpointIndex> index = ReadIndex(SealedIndex(Good()));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->meta.step, 3);
  EXPECT_EQ(index->meta.seed, -7);
  EXPECT_TRUE(index->meta.optimizer);
  EXPECT_EQ(index->files[0].crc32c, 4294967295u);
  EXPECT_EQ(index->tensors.at("w").shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(index->tensors.at("w").pieces[0].tensor_begin, 8);
}

TEST(ReadIndex, RefusesWhatLeadsOutsideAFileOrATensorOrSaysAPlaceTwice) {
  struct Case {
    const char* name;
    std::function<void(json&)> damage;
    const char* reason;
  };
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const Case cases[] = {
      {"another format", [](json& i) { i["format"] = "x"; }, "format"},
      {"no tensors", [](json& i) { i.erase("tensors"); }, "incomplete"},
      {"a file elsewhere", [](json& i) { i["files"][0]["name"] = "../r0"; },
       "outside the checkpoint"},
      {"an absolute file", [](json& i) { i["files"][0]["name"] = "/etc/passwd"; },
       "outside the checkpoint"},
      {"the parent directory", [](json& i) { i["files"][0]["name"] = ".."; },
       "outside the checkpoint"},
      {"a name that ends early", [](json& i) { i["files"][0]["name"] = std::string("r\0x", 3); },
       "outside the checkpoint"},
      {"no name", [](json& i) { i["files"][0]["name"] = ""; }, "outside the checkpoint"},
      {"a file twice", [](json& i) { i["files"][1]["name"] = "r0"; }, "names a file twice"},
      {"a negative size", [](json& i) { i["files"][0]["size_bytes"] = -1; },
       "size_bytes is no integer"},
      {"a checksum of 33 bits", [](json& i) { i["files"][0]["crc32c"] = int64_t{1} << 32; },
       "crc32c is no integer"},
      {"a file that there isn't", [](json& i) { PieceOfW(i, 0)["file"] = 2; }, "bad piece of w"},
      {"a file beyond int", [](json& i) { PieceOfW(i, 0)["file"] = int64_t{1} << 32; },
       "file is no integer"},
      {"half an element", [](json& i) { PieceOfW(i, 0)["tensor_begin"] = 7.5; },
       "tensor_begin is no integer"},
      {"no elements", [](json& i) { PieceOfW(i, 0)["numel"] = 0; }, "numel is no integer"},
      {"past the tensor's end", [](json& i) { PieceOfW(i, 0)["numel"] = 5; }, "bad piece of w"},
      {"past it by an overflow", [](json& i) { PieceOfW(i, 0)["numel"] = kMost; },
       "bad piece of w"},
      {"past the file's end", [](json& i) { PieceOfW(i, 0)["file_begin"] = 13; },
       "outside its file"},
      {"past it by an overflow of bytes", [](json& i) { PieceOfW(i, 0)["file_begin"] = kMost / 2; },
       "outside its file"},
      {"a part twice", [](json& i) { PieceOfW(i, 0)["tensor_begin"] = 7; },
       "in part only, or twice"},
      {"a part lacking", [](json& i) { i["tensors"]["w"]["pieces"].erase(0); },
       "in part only, or twice"},
      {"two pieces in one place", [](json& i) { i["tensors"]["v"]["pieces"][0]["file_begin"] = 7; },
       "two pieces in one place"},
      {"an overflowing shape", [](json& i) { i["tensors"]["w"]["shape"] = {kMost / 2, 3}; },
       "bad shape of w"},
      {"an empty shape's product", [](json& i) { i["tensors"]["w"]["shape"] = {0, 4}; },
       "shape is no integer"},
      {"a negative step", [](json& i) { i["step"] = -1; }, "step is no integer"},
  };
  for (const Case& c : cases) {
    json index = Good();
    c.damage(index);
    const absl::StatusOr<CheckpointIndex> read = ReadIndex(SealedIndex(index));
    ASSERT_FALSE(read.ok()) << c.name;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << c.name;
    EXPECT_NE(std::string(read.status().message()).find(c.reason), std::string::npos)
        << c.name << ": " << read.status();
  }
}

// w in slices of columns: {2} and {1, 1}, the second in two pieces.
json Sliced() {
  json index = Good();
  index["format"] = kSlicedFormat;
  json pieces = {Piece(0, 0, 0, 6), Piece(1, 0, 0, 2), Piece(1, 2, 2, 1), Piece(0, 0, 10, 3)};
  for (int p = 0; p < 4; ++p) {
    const int begin = p == 0 ? 0 : p == 3 ? 3 : 2;
    pieces[p]["slice"] = {{"dim", 1}, {"begin", begin}, {"end", p == 0 ? 2 : begin + 1}};
  }
  index["tensors"]["w"]["pieces"] = pieces;
  return index;
}

TEST(ReadIndex, KnowsSlicesThatMakeUpATensor) {
  const absl::StatusOr<CheckpointIndex> index = ReadIndex(SealedIndex(Sliced()));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->tensors.at("w").pieces[1].slice, (Slice{1, 2, 3}));
  EXPECT_EQ(index->tensors.at("v").pieces[0].slice, std::nullopt);
}

TEST(ReadIndex, RefusesSlicesThatDont) {
  struct Case {
    const char* name;
    std::function<void(json&)> damage;
    const char* reason;
  };
  const Case cases[] = {
      {"of an older format", [](json& i) { i["format"] = kCheckpointFormat; }, "has slices"},
      {"past the dimension", [](json& i) { PieceOfW(i, 3)["slice"]["end"] = 5; }, "bad slice of w"},
      {"of no index", [](json& i) { PieceOfW(i, 0)["slice"]["begin"] = 2; }, "bad slice of w"},
      {"of a dimension that there isn't", [](json& i) { PieceOfW(i, 0)["slice"]["dim"] = 2; },
       "bad slice of w"},
      {"below 0", [](json& i) { PieceOfW(i, 0)["slice"]["begin"] = -1; }, "begin is no integer"},
      {"without an end", [](json& i) { PieceOfW(i, 0)["slice"].erase("end"); }, "incomplete"},
      {"one lacking", [](json& i) { i["tensors"]["w"]["pieces"].erase(0); }, "in part only"},
      {"the last lacking", [](json& i) { i["tensors"]["w"]["pieces"].erase(3); }, "in part only"},
      {"a part of one lacking", [](json& i) { i["tensors"]["w"]["pieces"].erase(2); },
       "in part only"},
      {"a part beyond its slice", [](json& i) { PieceOfW(i, 1)["numel"] = 4; }, "bad piece of w"},
      {"one twice", [](json& i) { PieceOfW(i, 3)["slice"] = PieceOfW(i, 1)["slice"]; },
       "in part only, or twice"},
      {"of two dimensions",
       [](json& i) {
         PieceOfW(i, 0) = Piece(0, 0, 0, 4);
         PieceOfW(i, 0)["slice"] = {{"dim", 0}, {"begin", 0}, {"end", 1}};
       },
       "in part only, or twice"},
      {"beside the whole",
       [](json& i) {
         PieceOfW(i, 0).erase("slice");
         PieceOfW(i, 0)["numel"] = 12;
       },
       "in part only, or twice"},
  };
  for (const Case& c : cases) {
    json index = Sliced();
    c.damage(index);
    const absl::StatusOr<CheckpointIndex> read = ReadIndex(SealedIndex(index));
    ASSERT_FALSE(read.ok()) << c.name;
    EXPECT_NE(std::string(read.status().message()).find(c.reason), std::string::npos)
        << c.name << ": " << read.status();
  }
}

TEST(ReadIndex, RefusesTextThatIsNoIndex) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{\"a\":1,\"a\":2}", "has \"a\" twice"},
      {"{\"a\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}",
       "nests too deeply"},  // to write it again would take the stack
      {Good().dump(), "incomplete"},
  };
  for (const auto& [text, reason] : cases) {
    EXPECT_NE(std::string(ReadIndex(text).status().message()).find(reason), std::string::npos)
        << text.substr(0, 40) << ": " << ReadIndex(text).status();
  }
}

TEST(WeightMapIn, HasNamesOfFilesInTheDirectory) {
  std::vector<std::string> problems;
  EXPECT_EQ(WeightMapIn(R"({"weight_map": {"a": "x.safetensors", "b": "y", "c": "x.safetensors"}})",
                        problems),
            (std::map<std::string, std::string>{
                {"a", "x.safetensors"}, {"b", "y"}, {"c", "x.safetensors"}}));
  EXPECT_TRUE(problems.empty());
  for (const char* file :
       {R"("/x")", R"("../x")", R"("..")", R"("")", R"("x\u0000")", "7", "null"}) {
    problems.clear();
    EXPECT_TRUE(
        WeightMapIn(absl::StrCat(R"({"weight_map": {"a": )", file, "}}"), problems).empty());
    EXPECT_EQ(problems.front(), ": weight_map.a is no file name; download it again") << file;
  }
}

}  // namespace
}  // namespace muster::trainer
