// Secrets of users, sealed with the master key, beside the store: data_dir/secrets/OWNER/NAME, and
// data_dir/secrets/known, by which the key is known. In neither State nor journal, so in no backup
// (docs/decisions/099-secrets.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

inline constexpr size_t kMaxSecretBytes = 32 << 10, kMaxSecrets = 100;  // of one owner

// Thread-safe.
class SecretStore {
 public:
  // The master key; `make`: one that isn't there is made. FAILED_PRECONDITION says what to do.
  using MasterKey = std::function<absl::StatusOr<std::string>(bool make)>;

  // Where there are secrets, the key has to be there and open one of them, or what it is known by.
  static absl::StatusOr<std::unique_ptr<SecretStore>> Open(std::string directory,
                                                           MasterKey master_key);

  // INVALID_ARGUMENT: the name or the value can't be one. RESOURCE_EXHAUSTED: there are too many.
  absl::Status Set(const std::string& owner, const std::string& name, std::string_view value);
  struct Named {
    std::string name;
    int64_t set_ns = 0;  // Unix time
  };
  std::vector<Named> List(const std::string& owner) const;  // by name
  // NOT_FOUND: there is none.
  absl::Status Delete(const std::string& owner, const std::string& name);
  // NOT_FOUND: there is none. DATA_LOSS: it doesn't open with the key. Else: not now.
  absl::StatusOr<std::string> Read(const std::string& owner, const std::string& name) const;
  bool Has(const std::string& owner, const std::string& name) const;
  // A little more than its value has; 0: there is none.
  int64_t SealedBytes(const std::string& owner, const std::string& name) const;

 private:
  SecretStore(std::string directory, MasterKey master_key)
      : directory_(std::move(directory)), master_key_(std::move(master_key)) {}
  void RemoveLeftovers() const;
  bool OpensKnown() const;
  void KeepKnown();
  std::string FolderOf(const std::string& owner) const;
  std::string PathOf(const std::string& owner, const std::string& name) const;
  absl::StatusOr<std::string> Key(bool make) const;

  const std::string directory_;
  const MasterKey master_key_;
  std::mutex changing_;  // held by Set and Delete
  mutable std::mutex mutex_;
  mutable std::string key_;  // guarded by mutex_; empty: not asked for yet
};

}  // namespace muster
