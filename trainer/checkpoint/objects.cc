#include "trainer/checkpoint/objects.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

std::mutex mutex;
ObjectStore* store = nullptr;

}  // namespace

bool IsObject(std::string_view path) { return path.starts_with("s3://"); }

std::string PrefixProblem(std::string_view url) {
  const auto bad = [&](const char* what) {
    return absl::StrCat("must be s3://BUCKET/PREFIX", what, "; got ",
                        std::string(url.substr(0, 200)));
  };
  if (!IsObject(url)) return bad("");
  std::string_view rest = url.substr(std::string_view("s3://").size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos || slash == 0) return bad("");
  const std::string_view bucket = rest.substr(0, slash);
  constexpr std::string_view kOfBuckets = "abcdefghijklmnopqrstuvwxyz0123456789.-";
  if (bucket.size() < 3 || bucket.size() > 63 ||
      bucket.find_first_not_of(kOfBuckets) != std::string_view::npos)
    return bad(", where BUCKET has 3 to 63 of [a-z0-9.-]");
  for (rest.remove_prefix(slash + 1); !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (part.empty() || part == "." || part == ".." ||
        std::any_of(part.begin(), part.end(),
                    [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
      return bad(", where no part of PREFIX is empty, ., .. or has control characters");
  }
  return "";
}

absl::StatusOr<ObjectStore*> Objects() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (store != nullptr) return store;
  std::error_code error;
  const std::string library =
      (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "muster-objects.so")
          .string();
  // Its own libraries first: libtorch exports parts of many others.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle == nullptr)
    return absl::UnavailableError(absl::StrCat("object stores need ", library, ": ", ::dlerror()));
  const auto make = reinterpret_cast<MakeObjectStore>(::dlsym(handle, kMakeObjectStore));
  if (make == nullptr) return absl::InternalError(absl::StrCat(library, " is of another version"));
  std::string text;
  store = make(&text);
  if (store == nullptr) return absl::UnavailableError(text);
  return store;
}

void CloseObjects() {
  const std::lock_guard<std::mutex> lock(mutex);
  delete store;
  store = nullptr;
}

}  // namespace muster::trainer
