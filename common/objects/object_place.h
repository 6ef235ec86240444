// Places in object stores, s3://BUCKET/PREFIX: what everybody takes for one. Of the standard
// library alone: the trainer shares this header, and no library, with the rest
// (docs/decisions/004-the-trainer-knows-no-protobuf.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace muster {

inline constexpr std::string_view kObjectScheme = "s3://";

enum class ObjectPlace {
  kPrefix,         // objects of others may lie in the bucket, and all of the name is checked
  kBucketOrPrefix  // a bucket alone will do, whatever its store lets it and its objects be called
};

inline bool IsBucketName(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-") == std::string_view::npos;
}

// Whether no part between two slashes is empty, leads elsewhere on a file system, or can't be
// shown.
inline bool IsObjectPrefix(std::string_view prefix) {
  while (!prefix.empty()) {
    const std::string_view part = prefix.substr(0, prefix.find('/'));
    prefix.remove_prefix(std::min(prefix.size(), part.size() + 1));
    if (part.empty() || part == "." || part == ".." ||
        std::any_of(part.begin(), part.end(),
                    [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
      return false;
  }
  return true;
}

// "" if `url` is such a place, whose slashes at the end don't count; else what is wrong: "must be
// s3://BUCKET/PREFIX; got URL".
inline std::string WhyNoObjectPlace(std::string_view url, ObjectPlace wanted) {
  const auto bad = [url](std::string_view what) {
    std::string text = "must be s3://BUCKET/PREFIX";
    return text.append(what).append("; got ").append(url.substr(0, 200));
  };
  if (!url.starts_with(kObjectScheme)) return bad("");
  std::string_view rest = url.substr(kObjectScheme.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t slash = rest.find('/');
  const bool alone = slash == std::string_view::npos;
  const std::string_view bucket = rest.substr(0, slash);
  if (bucket.empty()) return bad("");
  if (wanted == ObjectPlace::kBucketOrPrefix) return "";
  if (alone) return bad("");
  if (!IsBucketName(bucket)) return bad(", where BUCKET has 3 to 63 of [a-z0-9.-]");
  if (IsObjectPrefix(rest.substr(slash + 1))) return "";
  return bad(", where no part of PREFIX is empty, ., .. or has control characters");
}

}  // namespace muster
