// A packed directory: one archive, whose bytes depend on nothing but names, contents, and which
// files are programs. It can't say anything else: no owner, time, device, setuid bit, hard link.
//
//   kPackMagic, then entries, parents before what is in them, then an entry kPackEnd of no bytes.
//   An entry: kind (1 byte), bytes of the path (4, little-endian), bytes of the content (8), path,
//   content: a file's, or where a link leads.
//
// Packed by the command line, unpacked by muster-shim: no dependencies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

inline constexpr std::string_view kPackMagic = "muster-pack 1\n";
inline constexpr int64_t kPackMaxBytes = int64_t{64} << 20;  // of the archive
inline constexpr int64_t kPackMaxEntries = 20'000;
inline constexpr size_t kPackMaxPath = 4'000, kPackMaxLink = 4'000;

enum PackKind : char {
  kPackDirectory = 'd',
  kPackFile = 'f',
  kPackProgram = 'x',  // a file that may be executed
  kPackLink = 'l',
  kPackEnd = 'e',
};

inline constexpr size_t kPackHeaderBytes = 1 + 4 + 8;

struct PackHeader {
  char kind = kPackEnd;
  uint32_t path_bytes = 0;
  uint64_t content_bytes = 0;
};

inline std::string PackHeaderText(const PackHeader& header) {
  std::string bytes(1, header.kind);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(header.path_bytes >> (8 * i) & 0xff);
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.content_bytes >> (8 * i) & 0xff);
  return bytes;
}

// Of kPackHeaderBytes.
inline PackHeader ReadPackHeader(std::string_view bytes) {
  PackHeader header;
  header.kind = bytes[0];
  for (size_t i = 0; i < 4; ++i)
    header.path_bytes |= uint32_t{static_cast<unsigned char>(bytes[1 + i])} << (8 * i);
  for (size_t i = 0; i < 8; ++i)
    header.content_bytes |= uint64_t{static_cast<unsigned char>(bytes[5 + i])} << (8 * i);
  return header;
}

inline std::string PackEntry(char kind, std::string_view path, std::string_view content) {
  std::string entry = PackHeaderText({kind, static_cast<uint32_t>(path.size()), content.size()});
  entry.append(path).append(content);
  return entry;
}

// The component of `*path` up to its first slash; `*path` loses both.
inline std::string_view TakePackName(std::string_view* path) {
  const size_t slash = path->find('/');
  const std::string_view name = path->substr(0, slash);
  path->remove_prefix(slash == std::string_view::npos ? path->size() : slash + 1);
  return name;
}

// Whether an entry may have this path: names with slashes between, none of which leads anywhere
// but down.
inline bool IsPackPath(std::string_view path) {
  if (path.empty() || path.size() > kPackMaxPath || path.back() == '/' ||
      path.find('\0') != std::string_view::npos)
    return false;
  while (!path.empty()) {
    const std::string_view name = TakePackName(&path);
    if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  }
  return true;
}

// Whether a link at `path` may lead to `target`: up within the directory first, then down. As
// entries lie in directories, never in links, such a link doesn't leave it, whatever other links it
// leads through.
inline bool IsPackLink(std::string_view path, std::string_view target) {
  if (target.empty() || target.size() > kPackMaxLink || target[0] == '/' ||
      target.find('\0') != std::string_view::npos)
    return false;
  int above = 0;
  for (const char c : path) above += c == '/' ? 1 : 0;
  bool down = false;
  while (!target.empty()) {
    const std::string_view name = TakePackName(&target);
    if (name == ".." && (down || --above < 0)) return false;
    if (!name.empty() && name != "." && name != "..") down = true;
  }
  return true;
}

}  // namespace muster
