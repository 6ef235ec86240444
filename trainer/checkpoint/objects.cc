#include "trainer/checkpoint/objects.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/objects/object_place.h"

namespace muster::trainer {
namespace {

std::mutex mutex;
ObjectStore* store = nullptr;

}  // namespace

bool IsObject(std::string_view path) { return path.starts_with(kObjectScheme); }

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
