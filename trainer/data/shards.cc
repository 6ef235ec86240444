#include "trainer/data/shards.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checksum.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

// .docs is read in place; the offsets of a mapped file are aligned, and x86 and ARM are
// little-endian.
int64_t Offset(const MappedFile& documents, int64_t i) {
  int64_t value;
  std::memcpy(&value, documents.bytes().data() + 8 * i, 8);
  return value;
}

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", what, "; make it again with `muster-trainer prepare`"));
}

// A plain file name: shards may not reach outside their directory.
bool IsFileName(const json& value) {
  if (!value.is_string()) return false;
  const std::string name = value.get<std::string>();
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool IsCount(const json& value) {
  return value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() < 9e15;
}

// The documents' ends rise from 0 to the shard's last token.
absl::Status CheckOffsets(const MappedFile& documents, int64_t num_documents, int64_t num_tokens,
                          const std::string& path) {
  for (int64_t d = 0; d <= num_documents; ++d) {
    const int64_t previous = d == 0 ? 0 : Offset(documents, d - 1);
    const int64_t offset = Offset(documents, d);
    if (offset < previous || (d == 0 && offset != 0) ||
        (d == num_documents && offset != num_tokens))
      return Bad(path, absl::StrCat("offset ", d, " is ", offset));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenShards> TokenShards::Open(const std::string& directory) {
  const std::string index_path = directory + "/index.json";
  absl::StatusOr<std::string> text = ReadFile(index_path);
  if (!text.ok()) {
    return absl::NotFoundError(
        absl::StrCat(directory, " holds no token shards (", std::string(text.status().message()),
                     "); make them with `muster-trainer prepare --output ", directory, "`"));
  }
  const json index = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) return Bad(index_path, "not a JSON object");
  if (index.value("format", json()) != "muster-tokens-2")
    return Bad(index_path, "format is not \"muster-tokens-2\"");
  TokenShards result;
  const json dtype = index.value("dtype", json());
  if (dtype != "uint16" && dtype != "uint32")
    return Bad(index_path, "dtype is neither uint16 nor uint32");
  result.token_bytes_ = dtype == "uint16" ? 2 : 4;
  const json vocab = index.value("vocab_size", json());
  if (!IsCount(vocab) || vocab == 0) return Bad(index_path, "vocab_size is no positive number");
  result.vocab_size_ = vocab.get<int64_t>();
  if (const json name = index.value("tokenizer", json());
      IsFileName(name) &&
      std::filesystem::is_directory(directory + "/" + name.get<std::string>())) {
    result.tokenizer_directory_ = directory + "/" + name.get<std::string>();
  }
  result.fingerprint_ = Sha256Hex(*text);
  result.has_pairs_ = index.value("pairs", json()) == true;

  const json shards = index.value("shards", json());
  if (!shards.is_array() || shards.empty()) return Bad(index_path, "shards is no list, or empty");
  for (size_t i = 0; i < shards.size(); ++i) {
    const json& entry = shards[i];
    const std::string where = absl::StrCat(index_path, ": shards[", i, "]");
    if (!entry.is_object() || !IsFileName(entry.value("tokens", json())) ||
        !IsFileName(entry.value("documents", json())) ||
        !IsCount(entry.value("num_tokens", json())) ||
        !IsCount(entry.value("num_documents", json()))) {
      return Bad(where, "needs tokens, documents, num_tokens and num_documents");
    }
    const int64_t num_tokens = entry["num_tokens"].get<int64_t>();
    const int64_t num_documents = entry["num_documents"].get<int64_t>();
    Shard shard;
    shard.tokens_path = directory + "/" + entry["tokens"].get<std::string>();
    const auto open = [&](const char* key, int64_t want_bytes, MappedFile& file) -> absl::Status {
      const std::string path = directory + "/" + entry[key].get<std::string>();
      absl::StatusOr<MappedFile> mapped = MappedFile::Open(path);
      if (!mapped.ok()) return mapped.status();
      file = *std::move(mapped);
      const json digest = entry.value(absl::StrCat("sha256_", key), json());
      shard.files.push_back({path, digest.is_string() ? digest.get<std::string>() : ""});
      if (static_cast<int64_t>(file.bytes().size()) != want_bytes) {
        const int64_t has = static_cast<int64_t>(file.bytes().size());
        return Bad(path, absl::StrCat(has, " bytes where index.json means ", want_bytes, ": ",
                                      std::abs(has - want_bytes),
                                      has < want_bytes ? " are lacking" : " too many"));
      }
      return absl::OkStatus();
    };
    if (absl::Status s = open("tokens", num_tokens * result.token_bytes_, shard.tokens); !s.ok())
      return s;
    if (absl::Status s = open("documents", 8 * (num_documents + 1), shard.documents); !s.ok())
      return s;
    if (const json mask = entry.value("mask", json()); !mask.is_null()) {  // null: all tokens count
      if (!IsFileName(mask)) return Bad(absl::StrCat(where, ".mask"), "is no file name");
      if (absl::Status s = open("mask", num_tokens, shard.mask); !s.ok()) return s;
      result.has_masks_ = true;
    }
    const std::string documents = directory + "/" + entry["documents"].get<std::string>();
    if (absl::Status s = CheckOffsets(shard.documents, num_documents, num_tokens, documents);
        !s.ok())
      return s;
    result.num_tokens_ += num_tokens;
    result.document_base_.push_back(result.document_base_.back() + num_documents);
    result.shards_.push_back(std::move(shard));
  }
  if (result.num_documents() == 0) return Bad(index_path, "there are no documents");
  if (result.has_pairs_ && result.num_documents() % 2 != 0)
    return Bad(index_path, "half of a pair is lacking");
  return result;
}

std::pair<const TokenShards::Shard*, int64_t> TokenShards::Locate(int64_t document) const {
  const auto next = std::upper_bound(document_base_.begin(), document_base_.end(), document);
  const auto shard = next - document_base_.begin() - 1;
  return {&shards_[shard], document - document_base_[shard]};
}

int64_t TokenShards::document_length(int64_t document) const {
  const auto [shard, local] = Locate(document);
  return Offset(shard->documents, local + 1) - Offset(shard->documents, local);
}

absl::Status TokenShards::Read(int64_t document, int64_t begin, int64_t end, int64_t* tokens,
                               uint8_t* counts) const {
  const auto [shard, local] = Locate(document);
  const int64_t first = Offset(shard->documents, local) + begin;
  const uint8_t* raw = shard->tokens.bytes().data();
  for (int64_t i = 0; i < end - begin; ++i) {
    if (token_bytes_ == 2) {
      uint16_t id;
      std::memcpy(&id, raw + 2 * (first + i), 2);
      tokens[i] = id;
    } else {
      uint32_t id;
      std::memcpy(&id, raw + 4 * (first + i), 4);
      tokens[i] = id;
    }
    if (tokens[i] >= vocab_size_) {
      return absl::DataLossError(
          absl::StrCat(shard->tokens_path, ": token ", first + i, " (of its document ", local,
                       ", token ", begin + i, ") is id ", tokens[i], ", but vocab_size is ",
                       vocab_size_, "; make the shards again with `muster-trainer prepare`"));
    }
    counts[i] = shard->mask.bytes().empty() ? 1 : shard->mask.bytes()[first + i];
  }
  return absl::OkStatus();
}

int64_t TokenShards::Counting(int64_t document, int64_t begin, int64_t end) const {
  const auto [shard, local] = Locate(document);
  const std::span<const uint8_t> mask = shard->mask.bytes();
  if (mask.empty()) return end - begin;
  const int64_t first = Offset(shard->documents, local) + begin;
  const std::span<const uint8_t> part =
      mask.subspan(static_cast<size_t>(first), static_cast<size_t>(end - begin));
  return std::count_if(part.begin(), part.end(), [](uint8_t c) { return c != 0; });
}

absl::Status TokenShards::Verify(const std::atomic<bool>& stop) const {
  constexpr size_t kChunkBytes = size_t{4} << 20;
  for (const Shard& shard : shards_) {
    for (const CheckedFile& checked : shard.files) {
      if (checked.sha256.empty()) continue;
      // Mapped anew: to give memory back here takes nothing from those who read the shard.
      absl::StatusOr<MappedFile> file = MappedFile::Open(checked.path);
      if (!file.ok()) return file.status();
      Sha256 hash;
      for (size_t at = 0; at < file->bytes().size(); at += kChunkBytes) {
        if (stop) return absl::OkStatus();
        const std::span<const uint8_t> part =
            file->bytes().subspan(at, std::min(kChunkBytes, file->bytes().size() - at));
        hash.Add(part);
        file->Release(part);
      }
      if (hash.Hex() != checked.sha256) {
        return absl::DataLossError(
            absl::StrCat(checked.path,
                         " doesn't match its sha256 in index.json; copy it again, or make the "
                         "shards again with `muster-trainer prepare`"));
      }
    }
  }
  return absl::OkStatus();
}

ShardCheck::ShardCheck(std::vector<const TokenShards*> shards)
    : thread_([this, shards = std::move(shards)] {
        for (const TokenShards* one : shards) {
          if (status_ = one->Verify(stop_); !status_.ok()) break;
        }
        found_ = !status_.ok();
        ended_.set_value();
      }) {}

ShardCheck::~ShardCheck() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

absl::Status ShardCheck::Found() const { return found_ ? status_ : absl::OkStatus(); }

}  // namespace muster::trainer
