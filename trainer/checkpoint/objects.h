// Object stores in the place of a file system: s3://BUCKET/KEY, for AWS and whatever speaks its
// protocol. The client is Apache Arrow's (which is AWS's), in a library of its own,
// muster-objects.so beside the program: it is loaded when the first such path is met, so that runs
// on file systems start without its 65 MB.
//
// An object appears whole or not at all. What an upload that was killed has sent stays unseen; a
// rule of the bucket for unfinished multi-part uploads clears it away.
//
// Errors are texts ("" for none), as the two sides share no library but the C++ standard's.
// Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::trainer {

// An object on its way. Dropped without Commit it never appears. Not thread-safe.
class ObjectUpload {
 public:
  virtual ~ObjectUpload() = default;
  virtual std::string Write(const void* data, size_t size) = 0;
  // The last call.
  virtual std::string Commit() = 0;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  // Writes the object's bytes to a file, from its beginning. `missing`: there is no such object.
  virtual std::string Fetch(const std::string& path, int fd, bool& missing) = 0;
  virtual std::string Upload(const std::string& path, std::unique_ptr<ObjectUpload>& upload) = 0;
  // Paths of all objects below `path`, at any depth.
  virtual std::string List(const std::string& path, std::vector<std::string>& found) = 0;
  // Removes an object, or all objects below a path; there being none is no error.
  virtual std::string Remove(const std::string& path) = 0;
};

// Whether `path` is one of an object store.
bool IsObject(std::string_view path);

// The store for such paths; loaded by the first call. Endpoint, region and credentials come from
// where AWS's tools look for them: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
// AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, ~/.aws, the machine's role.
absl::StatusOr<ObjectStore*> Objects();

// Ends what Objects began; no upload may be under way. To be called before main returns.
void CloseObjects();

// What muster-objects.so exports, under this name: makes the store, or says why not.
using MakeObjectStore = ObjectStore* (*)(std::string* error);
inline constexpr char kMakeObjectStore[] = "muster_make_object_store";

}  // namespace muster::trainer
