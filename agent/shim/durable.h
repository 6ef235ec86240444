// Durable small files and the claim, with plain POSIX calls: shared by the static shim and the
// agent. All return 0 or an errno. Thread-safe as far as the paths differ.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::shim {

// temporary file beside it, fsync, rename, fsync of the directory. With `sync` false only atomic,
// not durable. A file that lies ready under SpareName is written over instead and changes names
// with the old one, which is the next spare then: as long as there is one, no room on the disk is
// needed. Where others may write, a name that isn't a plain file is not waited for.
int ReplaceFile(const std::string& directory, const std::string& name, std::string_view content,
                bool sync = true);
// Makes such a file, of so many bytes, unless there is one: what is written to it later needs no
// room on the disk, which may be full by then.
int ReserveFile(const std::string& directory, const std::string& name, size_t bytes);
int ReadSmallFile(const std::string& path, std::string* content);  // at most 64 MiB, else EFBIG
int ReadAll(int fd, std::string* content);                         // likewise, to its end
int SyncDirectory(const std::string& directory);
int SyncFile(const std::string& path);  // with its name
int WriteAll(int fd, std::string_view content);
std::string SpareName(const std::string& directory, std::string_view name);
// Who holds an fcntl lock of the file; 0: nobody, or there is no such file; -1: somebody whose
// number isn't known here.
pid_t LockHolder(const std::string& path);
// ENOENT, EACCES and their like: a path given by somebody names nothing that can be used. Not a
// fault of the machine.
bool NamesNothing(int error);

enum class Claim { kNone, kStarted, kStopped };

// Contract 3: decides once whether an attempt starts here or is stopped. The first wins, whoever
// tries; the content names the winner. 0: `*winner` is `wanted` (won now, or before) or the other.
// The claim, the directory and its name in the parent are durable on return, also when somebody
// else made it. Where ROOT = `directory`/../.. holds the texts of claims (MakeClaimTexts), the
// claim is another name of one of them, which costs one sync less.
int MakeClaim(const std::string& directory, Claim wanted, Claim* winner);
int MakeClaimTexts(const std::string& root);                // durable; makes what is missing
int ReadClaim(const std::string& directory, Claim* claim);  // kNone if there is none

}  // namespace muster::shim
