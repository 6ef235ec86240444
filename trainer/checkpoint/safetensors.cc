#include "trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checksum.h"
#include "trainer/checkpoint/json_text.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

absl::Status Malformed(const std::string& what) {
  return absl::InvalidArgumentError("not a valid safetensors file: " + what);
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const json& value,
                                            uint64_t data_bytes) {
  const auto bad = [&](const std::string& what) {
    return Malformed(absl::StrCat("tensor \"", name, "\": ", what));
  };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return bad("needs exactly dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  if (!value["dtype"].is_string()) return bad("dtype is not a string");
  entry.dtype = value["dtype"].get<std::string>();
  const int element_bytes = SafetensorsElementBytes(entry.dtype);
  if (element_bytes == 0) return bad(absl::StrCat("unknown dtype \"", entry.dtype, "\""));
  if (!value["shape"].is_array()) return bad("shape is not a list");
  uint64_t bytes = static_cast<uint64_t>(element_bytes);
  for (const json& dim : value["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > (uint64_t{1} << 62))
      return bad("shape has an entry that is no size");
    entry.shape.push_back(static_cast<int64_t>(dim.get<uint64_t>()));
    if (__builtin_mul_overflow(bytes, dim.get<uint64_t>(), &bytes)) return bad("shape overflows");
  }
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("data_offsets is not [begin, end]");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end) return bad("data_offsets reach outside the file");
  if (entry.end > data_bytes) return bad("data_offsets reach outside the file");
  if (entry.end - entry.begin != bytes) return bad("data_offsets don't match dtype and shape");
  return entry;
}

}  // namespace

int SafetensorsElementBytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int> kBytes[] = {
      {"F64", 8},  {"F32", 4},     {"F16", 2},     {"BF16", 2},   {"I64", 8}, {"I32", 4},
      {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},    {"U16", 2}, {"U8", 1},
      {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [name, bytes] : kBytes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

namespace {

// Bytes of the header's JSON, which follows the first eight.
absl::StatusOr<uint64_t> HeaderBytes(std::span<const uint8_t> begin, uint64_t file_bytes) {
  if (file_bytes < 8 || begin.size() < 8) return Malformed("shorter than 8 bytes");
  uint64_t header_bytes = 0;
  for (int i = 0; i < 8; ++i) header_bytes |= uint64_t{begin[i]} << (8 * i);
  if (header_bytes > kSafetensorsHeaderLimitBytes)
    return Malformed(absl::StrCat("a header of ", header_bytes, " bytes"));
  if (header_bytes > file_bytes - 8)
    return Malformed("its header reaches past the end of the file");
  return header_bytes;
}

// The tensor that would end last, and how many bytes the file lacks for it: a file that was cut
// lacks that many.
absl::Status CheckLength(const json& header, uint64_t data_bytes) {
  uint64_t end = data_bytes;
  std::string last;
  for (const auto& [name, value] : header.items()) {
    if (!value.is_object() || !value.contains("data_offsets") ||
        !value["data_offsets"].is_array() || value["data_offsets"].size() != 2)
      continue;
    const json& to = value["data_offsets"][1];
    if (to.is_number_unsigned() && to.get<uint64_t>() > end) end = to.get<uint64_t>(), last = name;
  }
  if (end == data_bytes) return absl::OkStatus();
  return Malformed(absl::StrCat("tensor \"", last,
                                "\": data_offsets reach outside the file, which has ",
                                end - data_bytes, " bytes too few for all of them"));
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> file) {
  return ParseSafetensors(file, file.size());
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const MappedFile& file) {
  std::vector<uint8_t> begin(std::min<size_t>(8, file.bytes().size()));
  if (absl::Status s = file.Copy(file.bytes().first(begin.size()), begin.data()); !s.ok()) return s;
  const absl::StatusOr<uint64_t> header_bytes = HeaderBytes(begin, file.bytes().size());
  if (!header_bytes.ok()) return header_bytes.status();
  begin.resize(8 + *header_bytes);
  if (absl::Status s = file.Copy(file.bytes().first(begin.size()), begin.data()); !s.ok()) return s;
  return ParseSafetensors(begin, file.bytes().size());
}

absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> begin,
                                                   uint64_t file_bytes) {
  const absl::StatusOr<uint64_t> header_bytes = HeaderBytes(begin, file_bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  const absl::StatusOr<json> parsed = ParseJsonObject(
      {reinterpret_cast<const char*>(begin.data()) + 8, static_cast<size_t>(*header_bytes)},
      /*deepest=*/8);
  if (!parsed.ok())
    return Malformed(absl::StrCat("its header ", std::string(parsed.status().message())));

  SafetensorsHeader header;
  header.data_offset = 8 + *header_bytes;
  const uint64_t data_bytes = file_bytes - header.data_offset;
  if (absl::Status s = CheckLength(*parsed, data_bytes); !s.ok()) return s;
  for (const auto& [name, value] : parsed->items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return Malformed("__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return Malformed("__metadata__ holds something else than strings");
        header.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry = ParseEntry(name, value, data_bytes);
    if (!entry.ok()) return entry.status();
    header.tensors.emplace(name, *std::move(entry));
  }
  std::vector<const SafetensorsEntry*> order;
  for (const auto& [name, entry] : header.tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t at = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin < at) return Malformed("two tensors overlap");
    if (entry->begin > at) return Malformed("there is a hole between tensors");
    at = entry->end;
  }
  if (at != data_bytes)
    return Malformed(absl::StrCat(data_bytes - at, " bytes after the last tensor"));
  return header;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Of(MappedFile file) {
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensors(file.bytes());
  if (!header.ok()) return header.status();
  return SafetensorsFile(std::move(file), *std::move(header));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path, /*for_copies=*/true);
  if (!file.ok()) return file.status();
  constexpr std::string_view kPointer = "version https://git-lfs";
  const std::span<const uint8_t> bytes = file->bytes();
  const bool pointer = bytes.size() >= kPointer.size() &&
                       std::equal(kPointer.begin(), kPointer.end(), bytes.begin());
  absl::StatusOr<SafetensorsFile> result = Of(*std::move(file));
  if (result.ok()) return result;
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ",
      pointer ? "a Git LFS pointer, not the file itself; run `git lfs pull` there"
              : std::string(result.status().message()) + "; copy or download it again"));
}

namespace {

uint64_t BytesOf(const SafetensorsTensor& tensor) {
  uint64_t bytes = static_cast<uint64_t>(SafetensorsElementBytes(tensor.dtype));
  for (const int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

}  // namespace

std::string SafetensorsHeaderBytes(const std::vector<SafetensorsTensor>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const uint64_t end = at + BytesOf(tensor);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>((uint64_t{text.size()} >> (8 * i)) & 0xFF);
  return bytes + text;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<SafetensorsTensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<DurableFile> file = DurableFile::Create(path);
  if (!file.ok()) return file.status();
  // So few that they are still in the CPU's cache when they are written; an object store wants much
  // at once.
  SafetensorsWriter writer(*std::move(file), IsObject(path) ? SIZE_MAX : size_t{256} << 10);
  const std::string header = SafetensorsHeaderBytes(tensors, metadata);
  writer.wanted_bytes_ = header.size();
  for (const SafetensorsTensor& tensor : tensors) writer.wanted_bytes_ += BytesOf(tensor);
  if (absl::Status s =
          writer.Append({reinterpret_cast<const uint8_t*>(header.data()), header.size()});
      !s.ok())
    return s;
  return writer;
}

absl::Status SafetensorsWriter::Append(std::span<const uint8_t> bytes) {
  for (size_t at = 0; at < bytes.size(); at += std::min(block_bytes_, bytes.size() - at)) {
    const std::span<const uint8_t> block =
        bytes.subspan(at, std::min(block_bytes_, bytes.size() - at));
    written_.size_bytes += block.size();
    written_.crc32c = Crc32c(block.data(), block.size(), written_.crc32c);
    if (absl::Status s = file_.Write(block); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<WrittenFile> SafetensorsWriter::Finish(Until until) {
  if (written_.size_bytes != wanted_bytes_) {
    return absl::InternalError(absl::StrCat(
        written_.size_bytes, " bytes were written where the header means ", wanted_bytes_));
  }
  if (absl::Status s = file_.Commit(until); !s.ok()) return s;
  return written_;
}

absl::StatusOr<WrittenFile> WriteSafetensors(const std::string& path,
                                             const std::vector<SafetensorsTensor>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(path, tensors, metadata);
  if (!writer.ok()) return writer.status();
  for (const SafetensorsTensor& tensor : tensors) {
    if (absl::Status s = writer->Append(tensor.data); !s.ok()) return s;
  }
  return writer->Finish();
}

}  // namespace muster::trainer
