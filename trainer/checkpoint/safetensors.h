// Reader and writer of the safetensors format (https://github.com/huggingface/safetensors,
// "Format"): 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes. The
// reader trusts nothing: bounded header, known dtypes, offsets inside the file that match the
// shape, no overlap and no holes, no duplicate names.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/files.h"

namespace muster::trainer {

inline constexpr size_t kSafetensorsHeaderLimitBytes = size_t{100} << 20;

struct SafetensorsEntry {
  std::string dtype;            // as written: "F32", "BF16", "F16", …
  std::vector<int64_t> shape;   // all >= 0
  uint64_t begin = 0, end = 0;  // byte range inside the data section
};

// Bytes of one element, 0 for a dtype that the format doesn't have.
int SafetensorsElementBytes(std::string_view dtype);

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // where the data section starts in the file
};

// Checks and reads the header of a whole file's bytes.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> file);
// The same of a file of `file_bytes` whose first bytes, at least all of its header, are `begin`.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> begin,
                                                   uint64_t file_bytes);
// Reads as much of the file as its header takes, and that.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const MappedFile& file);

// A mapped file with its header. Movable, thread-safe for reading.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // Takes over what is mapped already, for copies if it is read by them.
  static absl::StatusOr<SafetensorsFile> Of(MappedFile file);
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  const SafetensorsHeader& header() const { return header_; }
  const MappedFile& file() const { return file_; }
  // The tensor's bytes; `entry` must be of this file's header.
  std::span<const uint8_t> Data(const SafetensorsEntry& entry) const {
    return file_.bytes().subspan(header_.data_offset + entry.begin, entry.end - entry.begin);
  }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const uint8_t> data;
};

// The header (length prefix included, padded with spaces to 8 bytes) for tensors laid out in the
// given order.
std::string SafetensorsHeaderBytes(const std::vector<SafetensorsTensor>& tensors,
                                   const std::map<std::string, std::string>& metadata);

struct WrittenFile {
  uint64_t size_bytes = 0;
  uint32_t crc32c = 0;  // of the whole file
};

// Writes a file of known shapes piece by piece, so that its tensors need never be in memory
// together. Movable.
class SafetensorsWriter {
 public:
  // The tensors' `data` doesn't count.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<SafetensorsTensor>& tensors,
      const std::map<std::string, std::string>& metadata);
  // The next bytes of the tensors, which follow each other in the order given.
  absl::Status Append(std::span<const uint8_t> bytes);
  // Commits the file (DurableFile); every tensor must have been written whole.
  absl::StatusOr<WrittenFile> Finish(Until until = Until::kOnDisk);

 private:
  SafetensorsWriter(DurableFile file, size_t block_bytes)
      : file_(std::move(file)), block_bytes_(block_bytes) {}
  DurableFile file_;
  WrittenFile written_;
  uint64_t wanted_bytes_ = 0;
  size_t block_bytes_;  // that are checked and written in turn
};

// Writes the file durably (WriteFileDurably).
absl::StatusOr<WrittenFile> WriteSafetensors(const std::string& path,
                                             const std::vector<SafetensorsTensor>& tensors,
                                             const std::map<std::string, std::string>& metadata);

}  // namespace muster::trainer
