#include "trainer/loop/profile.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr int64_t kWarmUp = 2;

std::set<ActivityType> Activities(bool gpu) {
  return gpu ? std::set<ActivityType>{ActivityType::CPU, ActivityType::CUDA}
             : std::set<ActivityType>{ActivityType::CPU};
}

}  // namespace

Profile::Profile(int64_t steps, int64_t left, std::string directory, int rank, bool gpu)
    : skip_(std::clamp<int64_t>(left - steps, 0, kWarmUp)),
      left_(std::min(steps, left)),
      directory_(std::move(directory)),
      rank_(rank),
      gpu_(gpu) {
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);  // what matters is told by us
}

void Profile::Ask(int64_t steps, int64_t left) {
  if (left_ == 0) left_ = std::min(steps, left);
}

void Profile::Begin(int64_t step) {
  if (recording_ || left_ == 0) return;
  if (skip_ > 0) {
    --skip_;
    return;
  }
  const ProfilerConfig config(ProfilerState::KINETO);
  profiler::prepareProfiler(config, Activities(gpu_));
  profiler::enableProfiler(config, Activities(gpu_),
                           {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  first_step_ = step;
  recording_ = true;
}

absl::StatusOr<std::string> Profile::End() {
  if (!recording_ || --left_ > 0) return "";
  return Finish();
}

absl::StatusOr<std::string> Profile::Finish() {
  if (!recording_) return "";
  recording_ = false;
  left_ = 0;
  // What a GPU hasn't ended yet, as the update of the last step, would be missing.
  if (gpu_) c10::cuda::device_synchronize();
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  char name[64];
  std::snprintf(name, sizeof name, "/step-%08lld.rank-%d.json", static_cast<long long>(first_step_),
                rank_);
  std::string path = directory_ + name, unfinished = path + ".unfinished";
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (!error) {
    result->save(unfinished);
    // Kineto doesn't say whether it could: a whole trace ends with its closing brace.
    bool whole = false;
    if (std::FILE* file = std::fopen(unfinished.c_str(), "rb"); file != nullptr) {
      char tail[8] = {};
      whole = std::fseek(file, -static_cast<long>(sizeof tail), SEEK_END) == 0 &&
              std::fread(tail, 1, sizeof tail, file) == sizeof tail &&
              std::string_view(tail, sizeof tail).find('}') != std::string_view::npos;
      std::fclose(file);
    }
    if (whole)
      std::filesystem::rename(unfinished, path, error);
    else
      error = std::make_error_code(std::errc::io_error);
  }
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    return absl::UnavailableError(
        absl::StrCat("the profile can't be written to ", path, ": ", error.message(),
                     "; see that the directory can be written and has room"));
  }
  return path;
}

}  // namespace muster::trainer
