// Token shards as `muster-trainer prepare` writes them: index.json beside .tokens (raw
// little-endian ids; documents end with their end-of-document token, if they have one), .docs
// (int64 offsets, one more than documents) and optional .mask (a byte a token: 1 = counts in the
// loss). All files are mapped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/files.h"

namespace muster::trainer {

// Immutable after Open; thread-safe. Documents are numbered through all shards.
class TokenShards {
 public:
  // Opens the directory; checks sizes and offsets of every shard against index.json. Errors name
  // the file.
  static absl::StatusOr<TokenShards> Open(const std::string& directory);

  int64_t num_documents() const { return document_base_.back(); }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t document_length(int64_t document) const;
  bool has_masks() const { return has_masks_; }
  bool has_pairs() const { return has_pairs_; }  // documents 2p and 2p + 1 are chosen and rejected
  const std::string& tokenizer_directory() const { return tokenizer_directory_; }  // empty: none
  const std::string& fingerprint() const { return fingerprint_; }  // sha256 of index.json

  // Copies tokens [begin, end) of a document to `tokens`, and their mask to `counts`. Fails on an
  // id that isn't below vocab_size(), naming its file and place.
  absl::Status Read(int64_t document, int64_t begin, int64_t end, int64_t* tokens,
                    uint8_t* counts) const;
  // How many of those count in the loss. Reads no token: only the mask, where there is one.
  int64_t Counting(int64_t document, int64_t begin, int64_t end) const;

  // Reads all files and compares their sha256 with index.json. Stops early, with OK, once `stop` is
  // true.
  absl::Status Verify(const std::atomic<bool>& stop) const;

 private:
  struct CheckedFile {
    std::string path, sha256;  // sha256: as index.json has it, or ""
  };
  struct Shard {
    std::string tokens_path;
    MappedFile tokens, documents, mask;
    std::vector<CheckedFile> files;
  };
  // The shard that holds `document`, and the document's number within.
  std::pair<const Shard*, int64_t> Locate(int64_t document) const;

  std::vector<Shard> shards_;
  std::vector<int64_t> document_base_ = {0};
  int64_t num_tokens_ = 0, vocab_size_ = 0;
  int token_bytes_ = 2;
  bool has_masks_ = false, has_pairs_ = false;
  std::string tokenizer_directory_, fingerprint_;
};

// Verifies shards in a thread of its own, beside training; a destructor gives it up. Thread-safe.
class ShardCheck {
 public:
  // `shards` must outlive it.
  explicit ShardCheck(std::vector<const TokenShards*> shards);
  ~ShardCheck();

  // What was found wrong so far; OK while nothing was.
  absl::Status Found() const;
  // Waits for the end at most that long; whether it has come.
  bool WaitFor(std::chrono::milliseconds limit) const {
    return end_.wait_for(limit) == std::future_status::ready;
  }

 private:
  std::atomic<bool> stop_{false}, found_{false};
  absl::Status status_;  // the thread's until found_
  std::promise<void> ended_;
  std::shared_future<void> end_{ended_.get_future()};
  std::thread thread_;
};

}  // namespace muster::trainer
