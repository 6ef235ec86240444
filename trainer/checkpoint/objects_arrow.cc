// muster-objects.so: object stores through Apache Arrow's S3FileSystem, from the pyarrow wheel that
// `prepare` reads with.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <arrow/buffer.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>

#include "trainer/checkpoint/objects.h"

namespace muster::trainer {
namespace {

constexpr int64_t kPartBytes = int64_t{8} << 20;  // fetched at once
constexpr int kFetchers = 4;                      // parts of an object on their way
constexpr int64_t kAttempts = 7;                  // at a request: about half a minute
// Arrow sends parts of 10 MiB, which can't be changed, and S3 takes 10,000 of an object. So what is
// longer than this goes on in KEY.1, KEY.2, …; KEY comes last, so the whole appears with it. Files
// that are there are read by this number: it stays.
constexpr int64_t kObjectBytes = int64_t{90} << 30;
constexpr char kTestObjectBytes[] = "MUSTER_TEST_OBJECT_BYTES";

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FirstOf(const char* name, const char* other) {
  std::string value = Env(name);
  return value.empty() ? Env(other) : value;
}

// Tests have less in an object. 0: what they say is no number above 0.
int64_t ObjectBytes() {
  const std::string text = Env(kTestObjectBytes);
  if (text.empty()) return kObjectBytes;
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  return error == std::errc() && end == text.data() + text.size() ? std::max<int64_t>(0, bytes) : 0;
}

// BUCKET/KEY, without slashes at its end.
std::string KeyOf(const std::string& path) {
  std::string key = path.substr(std::strlen("s3://"));
  while (!key.empty() && key.back() == '/') key.pop_back();
  return key;
}
// Of the object that has a file's `number`-th so many bytes.
std::string KeyOf(const std::string& path, size_t number) {
  return number == 0 ? KeyOf(path) : KeyOf(path) + "." + std::to_string(number);
}

std::string Text(const arrow::Status& status, const std::string& path) {
  return status.ok() ? "" : path + ": " + status.message();
}

// Takes the memory of a part for each object that it has begun.
class ArrowUpload : public ObjectUpload {
 public:
  ArrowUpload(std::shared_ptr<arrow::fs::S3FileSystem> system, std::string path)
      : system_(std::move(system)), path_(std::move(path)) {}
  ~ArrowUpload() override {
    for (const auto& stream : streams_) {
      if (!stream->closed()) static_cast<void>(stream->Abort());
    }
  }
  arrow::Status Begin() {
    ARROW_ASSIGN_OR_RAISE(auto stream,
                          system_->OpenOutputStream(KeyOf(path_, streams_.size()), nullptr));
    streams_.push_back(std::move(stream));
    in_object_ = 0;
    return arrow::Status::OK();
  }
  std::string Write(const void* data, size_t size) override {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (auto left = static_cast<int64_t>(size); left > 0;) {
      if (in_object_ == most_) {
        if (const arrow::Status status = Begin(); !status.ok()) return Text(status, path_);
      }
      const int64_t now = std::min(left, most_ - in_object_);
      if (const arrow::Status status = streams_.back()->Write(bytes, now); !status.ok())
        return Text(status, path_);
      bytes += now, left -= now, in_object_ += now;
    }
    return "";
  }
  std::string Commit() override {
    for (auto stream = streams_.rbegin(); stream != streams_.rend(); ++stream) {
      if (const arrow::Status status = (*stream)->Close(); !status.ok()) return Text(status, path_);
    }
    return "";
  }

 private:
  const std::shared_ptr<arrow::fs::S3FileSystem> system_;
  const std::string path_;
  const int64_t most_ = ObjectBytes();  // of an object
  std::vector<std::shared_ptr<arrow::io::OutputStream>> streams_;
  int64_t in_object_ = 0;  // of the last
};

class ArrowStore : public ObjectStore {
 public:
  ~ArrowStore() override {
    systems_.clear();
    static_cast<void>(arrow::fs::EnsureS3Finalized());
  }

  std::string Fetch(const std::string& path, int fd, bool& missing) override {
    const auto system = System(path);
    if (!system.ok()) return Text(system.status(), path);
    int64_t begin = 0;  // of what an object has
    for (size_t number = 0;; ++number) {
      int64_t size = 0;
      bool none = false;
      const std::string problem = FetchOne(**system, path, number, fd, begin, size, none);
      if (number == 0) missing = none;
      if (number > 0 && none) return "";  // it ends with the one before
      if (!problem.empty() || size < ObjectBytes()) return problem;
      begin += size;
    }
  }

  std::string Upload(const std::string& path, std::unique_ptr<ObjectUpload>& upload) override {
    const auto system = System(path);
    if (!system.ok()) return Text(system.status(), path);
    auto begun = std::make_unique<ArrowUpload>(*system, path);
    if (const arrow::Status status = begun->Begin(); !status.ok()) return Text(status, path);
    upload = std::move(begun);
    return "";
  }

  std::string List(const std::string& path, std::vector<std::string>& found) override {
    const auto system = System(path);
    if (!system.ok()) return Text(system.status(), path);
    arrow::fs::FileSelector selector;
    selector.base_dir = KeyOf(path);
    selector.recursive = true;
    selector.allow_not_found = true;
    const auto infos = (*system)->GetFileInfo(selector);
    if (!infos.ok()) return Text(infos.status(), path);
    for (const arrow::fs::FileInfo& info : *infos) {
      if (info.IsFile()) found.push_back("s3://" + info.path());
    }
    return "";
  }

  std::string Remove(const std::string& path) override {
    const auto system = System(path);
    if (!system.ok()) return Text(system.status(), path);
    const auto info = (*system)->GetFileInfo(KeyOf(path));
    if (!info.ok()) return Text(info.status(), path);
    // Deleting the last object below a path one by one would leave a marker in the place of the
    // directory.
    if (info->IsDirectory()) return Text((*system)->DeleteDir(KeyOf(path)), path);
    return info->IsFile() ? Text((*system)->DeleteFile(KeyOf(path)), path) : "";
  }

 private:
  // Writes a file's `number`-th object to `fd` from `begin` on; its size. `none`: there is no such
  // object.
  static std::string FetchOne(arrow::fs::S3FileSystem& system, const std::string& path,
                              size_t number, int fd, int64_t begin, int64_t& size, bool& none) {
    const std::string key = KeyOf(path, number);
    const auto opened = system.OpenInputFile(key);
    none = !opened.ok() && opened.status().IsIOError() &&
           system.GetFileInfo(key).ValueOr(arrow::fs::FileInfo()).type() ==
               arrow::fs::FileType::NotFound;
    if (!opened.ok()) return Text(opened.status(), path);
    const auto told = (*opened)->GetSize();
    if (!told.ok()) return Text(told.status(), path);
    size = *told;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::string problem;
    const auto fetch = [&] {
      for (int64_t at; (at = next.fetch_add(kPartBytes)) < size;) {
        const auto part = (*opened)->ReadAt(at, std::min(kPartBytes, size - at));
        std::string text = part.ok() ? "" : Text(part.status(), path);
        for (int64_t done = 0; text.empty() && done < (*part)->size();) {
          const auto left = static_cast<size_t>((*part)->size() - done);
          const ssize_t n = ::pwrite(fd, (*part)->data() + done, left, begin + at + done);
          if (n < 0 && errno != EINTR)
            text = "no room for a copy of " + path + ": " + std::strerror(errno);
          else if (n > 0)
            done += n;
        }
        if (text.empty()) continue;
        const std::lock_guard<std::mutex> lock(mutex);
        problem = std::move(text);
        next = size;
      }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < kFetchers && i * kPartBytes < size; ++i) others.emplace_back(fetch);
    fetch();
    for (std::thread& other : others) other.join();
    return problem;
  }

  // The file system for a path's bucket: buckets may lie in different regions.
  arrow::Result<std::shared_ptr<arrow::fs::S3FileSystem>> System(const std::string& path) {
    if (ObjectBytes() == 0)
      return arrow::Status::Invalid(kTestObjectBytes, " must be a whole number above 0; got ",
                                    Env(kTestObjectBytes));
    const std::string key = KeyOf(path), bucket = key.substr(0, key.find('/'));
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<arrow::fs::S3FileSystem>& system = systems_[bucket];
    if (system != nullptr) return system;
    arrow::fs::S3Options options = arrow::fs::S3Options::Defaults();
    options.endpoint_override = FirstOf("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    options.region = FirstOf("AWS_REGION", "AWS_DEFAULT_REGION");
    if (options.region.empty() && options.endpoint_override.empty()) {
      ARROW_ASSIGN_OR_RAISE(options.region, arrow::fs::ResolveS3BucketRegion(bucket));
    }
    // The caller writes beside training already; in the background a copy of everything would be
    // kept once more.
    options.background_writes = false;
    // Requests that a store is too busy for, or that didn't reach it, are sent again, with pauses
    // of up to some seconds.
    options.retry_strategy = arrow::fs::S3RetryStrategy::GetAwsStandardRetryStrategy(kAttempts);
    ARROW_ASSIGN_OR_RAISE(system, arrow::fs::S3FileSystem::Make(options));
    return system;
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<arrow::fs::S3FileSystem>> systems_;
};

}  // namespace
}  // namespace muster::trainer

extern "C" __attribute__((visibility("default"))) muster::trainer::ObjectStore*
muster_make_object_store(std::string* error) {
  arrow::fs::S3GlobalOptions options = arrow::fs::S3GlobalOptions::Defaults();
  options.log_level = arrow::fs::S3LogLevel::Fatal;
  if (const arrow::Status status = arrow::fs::InitializeS3(options); !status.ok()) {
    *error = status.message();
    return nullptr;
  }
  return new muster::trainer::ArrowStore();
}
