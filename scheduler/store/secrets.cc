#include "scheduler/store/secrets.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/secret_use.h"
#include "common/base/units.h"
#include "common/pki/seal.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

constexpr char kOwnerFile[] = ".owner";  // whose folder it is
constexpr char kTemporary[] = ".tmp.";   // in the name of what was being written
// Beside the folders, sealed as they are: whether the key is theirs doesn't hang on one of them.
constexpr char kKnownFile[] = "known", kKnown[] = "muster knows this", kKnownContext[] = "known";

// What a sealed value is bound to: it opens for no other owner, under no other name.
std::string ContextOf(const std::string& owner, const std::string& name) {
  return absl::StrCat("muster secret ", owner.size(), " ", owner, " ", name);
}

absl::Status None(const std::string& name) {
  return absl::NotFoundError(
      absl::StrCat("you have no secret ", name, ". Yours: muster secret list"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SecretStore>> SecretStore::Open(std::string directory,
                                                               MasterKey master_key) {
  if (absl::Status made = MakeDirectories(directory); !made.ok()) return made;
  std::unique_ptr<SecretStore> store(new SecretStore(std::move(directory), std::move(master_key)));
  store->RemoveLeftovers();
  absl::Status closed;  // why the first doesn't open
  for (const std::string& folder : NamesIn(store->directory_)) {
    const std::string path = absl::StrCat(store->directory_, "/", folder);
    const absl::StatusOr<std::string> owner = ReadFile(absl::StrCat(path, "/", kOwnerFile));
    for (const std::string& name : NamesIn(path)) {
      if (!IsSecretName(name)) continue;
      const absl::Status opened = owner.ok() ? store->Read(*owner, name).status() : owner.status();
      if (opened.ok()) {  // one of them says it of the key
        store->KeepKnown();
        return store;
      }
      LogWarn("a secret doesn't open",
              {{"path", absl::StrCat(path, "/", name)}, {"why", std::string(opened.message())}});
      if (closed.ok()) closed = opened;
    }
  }
  if (closed.ok() || store->OpensKnown()) return store;
  return absl::FailedPreconditionError(
      absl::StrCat("no secret in ", store->directory_, " opens: ", closed.message(),
                   ". Put the master key there that they were sealed with, or move the directory "
                   "away: users set their secrets anew"));
}

// Of a process that was killed while it wrote.
void SecretStore::RemoveLeftovers() const {
  for (const std::string& folder : NamesIn(directory_)) {
    const std::string path = absl::StrCat(directory_, "/", folder);
    if (absl::StrContains(folder, kTemporary)) ::unlink(path.c_str());
    for (const std::string& name : NamesIn(path))
      if (absl::StrContains(name, kTemporary)) ::unlink(absl::StrCat(path, "/", name).c_str());
  }
}

std::string SecretStore::FolderOf(const std::string& owner) const {
  return absl::StrCat(directory_, "/", Sha256Hex(owner));
}

std::string SecretStore::PathOf(const std::string& owner, const std::string& name) const {
  return absl::StrCat(FolderOf(owner), "/", name);
}

absl::StatusOr<std::string> SecretStore::Key(bool make) const {
  std::lock_guard lock(mutex_);
  if (!key_.empty()) return key_;
  absl::StatusOr<std::string> key = master_key_(make);
  if (key.ok()) key_ = *key;
  return key;
}

// False: not with this key, or there is none, as in a store of a release before it.
bool SecretStore::OpensKnown() const {
  const absl::StatusOr<std::string> sealed = ReadFile(absl::StrCat(directory_, "/", kKnownFile));
  const absl::StatusOr<std::string> key = Key(/*make=*/false);
  if (!sealed.ok() || !key.ok()) return false;
  const absl::StatusOr<std::string> known = Unseal(*key, kKnownContext, *sealed);
  return known.ok() && *known == kKnown;
}

// With a key that is the right one: it opened a secret, or there is none yet.
void SecretStore::KeepKnown() {
  if (OpensKnown()) return;
  const absl::StatusOr<std::string> key = Key(/*make=*/false);
  absl::Status kept = key.status();
  if (key.ok())
    kept = WriteFileDurably(absl::StrCat(directory_, "/", kKnownFile),
                            Seal(*key, kKnownContext, kKnown), 0400);
  if (!kept.ok())
    LogWarn("can't keep what the master key is known by", {{"why", std::string(kept.message())}});
}

absl::Status SecretStore::Set(const std::string& owner, const std::string& name,
                              std::string_view value) {
  if (!IsSecretName(name)) {
    return absl::InvalidArgumentError(
        "a secret's name is 1 to 64 of letters, digits and '_', and starts with no digit");
  }
  if (value.empty() || value.size() > kMaxSecretBytes || value.find('\0') != value.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("a secret's value has 1 to ", kMaxSecretBytes / 1024, " KiB, without NUL"));
  }
  std::lock_guard lock(changing_);
  if (!Has(owner, name) && List(owner).size() >= kMaxSecrets) {
    return absl::ResourceExhaustedError(
        absl::StrCat("you have ", kMaxSecrets, " secrets; delete one: muster secret delete NAME"));
  }
  const absl::StatusOr<std::string> key = Key(/*make=*/true);
  if (!key.ok()) return key.status();
  KeepKnown();
  const std::string folder = FolderOf(owner);
  if (absl::Status made = MakeDirectories(folder); !made.ok()) return made;
  const std::string owner_file = absl::StrCat(folder, "/", kOwnerFile);
  if (::access(owner_file.c_str(), F_OK) != 0) {
    if (absl::Status kept = WriteFileDurably(owner_file, owner); !kept.ok()) return kept;
    if (absl::Status synced = SyncDirectory(directory_); !synced.ok()) return synced;
  }
  return WriteFileDurably(PathOf(owner, name), Seal(*key, ContextOf(owner, name), value), 0400);
}

std::vector<SecretStore::Named> SecretStore::List(const std::string& owner) const {
  std::vector<Named> list;
  for (const std::string& name : NamesIn(FolderOf(owner))) {
    struct stat info {};
    if (!IsSecretName(name) || ::stat(PathOf(owner, name).c_str(), &info) != 0) continue;
    list.push_back({name, info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec});
  }
  return list;
}

absl::Status SecretStore::Delete(const std::string& owner, const std::string& name) {
  std::lock_guard lock(changing_);
  if (!Has(owner, name)) return None(name);
  if (::unlink(PathOf(owner, name).c_str()) != 0) return ErrnoStatus(errno, "the secret");
  return SyncDirectory(FolderOf(owner));
}

bool SecretStore::Has(const std::string& owner, const std::string& name) const {
  return IsSecretName(name) && ::access(PathOf(owner, name).c_str(), F_OK) == 0;
}

int64_t SecretStore::SealedBytes(const std::string& owner, const std::string& name) const {
  struct stat info {};
  return IsSecretName(name) && ::stat(PathOf(owner, name).c_str(), &info) == 0 ? info.st_size : 0;
}

absl::StatusOr<std::string> SecretStore::Read(const std::string& owner,
                                              const std::string& name) const {
  if (!IsSecretName(name)) return None(name);
  const absl::StatusOr<std::string> sealed = ReadFile(PathOf(owner, name), 2 * kMaxSecretBytes);
  if (absl::IsNotFound(sealed.status())) return None(name);
  if (!sealed.ok()) return sealed.status();
  const absl::StatusOr<std::string> key = Key(/*make=*/false);
  if (!key.ok()) return key.status();
  absl::StatusOr<std::string> value = Unseal(*key, ContextOf(owner, name), *sealed);
  if (!value.ok()) return absl::DataLossError(value.status().message());
  return value;
}

}  // namespace muster
