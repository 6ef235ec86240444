// What a job of one user sees of a host that others use, too: a /tmp, /var/tmp and /dev/shm of its
// own, a /dev with what it was granted, and nothing of the agent's. Part of the shim: no
// dependencies beyond the standard library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::shim {

// Directories that each attempt has for itself: nothing of the host's lies below them.
std::vector<std::string> PrivateDirectories();
// `path` lies in one of them.
bool IsPrivate(std::string_view path);
// That, in words; empty: it doesn't.
std::string WhyPrivate(std::string_view path);

// In a mount namespace of the caller's own whose mounts don't leave it, before /proc is replaced.
// `devices`: nodes, or directories of such, that are granted beside those that every program has.
// 0, or an errno with what failed.
int MakePrivateMounts(const std::vector<std::string>& devices, std::string* what);

// In a child, before it becomes the user: from now on `directory` is empty for it.
int Hide(const std::string& directory);

}  // namespace muster::shim
