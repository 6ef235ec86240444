#include "trainer/loop/train.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Logging.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/checkpoint/push.h"
#include "trainer/loop/auto_layout.h"
#include "trainer/loop/failures.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/process.h"
#include "trainer/loop/run.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/stop.h"
#include "trainer/ops/fused.h"

namespace muster::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// NCCL may take this long to end its kernels; then the process ends with them.
constexpr unsigned kAbortLimitS = 5;

// What the command line says besides the configuration. `leads`: this rank writes the metrics.
void CheckFlags(const TrainOptions& options, bool leads, TrainConfig& config, Problems& problems) {
  if (!options.profile.empty() &&
      (!absl::SimpleAtoi(options.profile, &config.profile_steps) || config.profile_steps < 1 ||
       config.profile_steps > kMostProfiledSteps)) {
    problems.push_back({"--profile", absl::StrCat("must be a number of steps, 1 to ",
                                                  kMostProfiledSteps, "; got ", options.profile)});
  }
  if (!options.metrics.empty() && leads) {
    const std::string folder = std::filesystem::path(options.metrics).parent_path().string();
    if (::access(options.metrics.c_str(), W_OK) != 0 &&
        (errno != ENOENT || ::access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)) {
      problems.push_back(
          {"--metrics", absl::StrCat(options.metrics, " can't be written: ", std::strerror(errno),
                                     "; name a file in a folder that is there")});
    }
  }
}

// Ends the process: destructors of a broken process group may wait for peers that are gone.
[[noreturn]] void Fail(const std::exception& e, int rank, World* world, Run* run, bool gpu) {
  const std::string message = Message(e);
  std::string blamed = world == nullptr ? "" : world->AnnouncedFailure();
  if (blamed.empty() && world != nullptr) world->AnnounceFailure(message);
  std::fprintf(stderr, "rank %d failed at step %lld: %s%s%s\n", rank,
               static_cast<long long>(run == nullptr ? 0 : run->step() + 1), message.c_str(),
               blamed.empty() ? "" : "\n  because of ", blamed.c_str());
  std::fflush(nullptr);
  if (run != nullptr) run->SendWhatIsKept();
  if (world != nullptr && gpu) {
    ::alarm(kAbortLimitS);
    world->Abort();
  }
  ::_exit(1);
}

// What this rank trains, on what; all that is wrong is in `problems`.
struct Request {
  WorldInfo info;
  at::Device device = at::kCPU;
  Setup setup;
};
Request ReadRequest(const TrainOptions& options, Problems& problems) {
  Request request;
  const absl::StatusOr<WorldInfo> info = WorldInfo::FromEnvironment();
  if (!info.ok()) problems.push_back({"environment", std::string(info.status().message())});
  request.setup = ReadSetup(options.config_path, problems);
  if (info.ok()) {
    request.info = *info;
    const absl::StatusOr<at::Device> chosen = ChooseDevice(info->local_rank);
    if (!chosen.ok()) problems.push_back({"environment", std::string(chosen.status().message())});
    request.device = chosen.value_or(at::kCPU);
    CheckLayout(request.setup.config, request.setup.model, info->size, request.device.is_cuda(),
                ops::fused::Compiled(), problems);
    if (request.device.is_cuda())
      CheckGpu(request.setup.config, ComputeCapability(request.device), problems);
  }
  CheckFlags(options, info.ok() && info->rank == 0, request.setup.config, problems);
  // Before the first step: an export that can't be written wouldn't be known until the last one.
  if (problems.empty() && request.info.rank == 0 && IsObject(request.setup.export_target)) {
    if (absl::Status s = ClaimPlace(request.setup.export_target); !s.ok())
      problems.push_back({"trainer.export", std::string(s.message())});
  }
  return request;
}

// Has the disk work while ranks meet and memory is made.
std::thread StartReadingAhead(const Request& request) {
  if (request.setup.surroundings.resume_from.empty()) return {};
  // A quarter of what is free for all ranks of the host: the page cache belongs to others as well.
  const auto most = static_cast<size_t>(AvailableHostBytes() / 4 / request.info.local_size);
  return std::thread([path = request.setup.surroundings.resume_from.front(),
                      rank = request.info.rank, size = request.info.size,
                      most] { ReadAheadOf(path, rank, size, most); });
}

// Meets the other ranks, and says how long that took. Adds why no layout can be chosen, where that
// is theirs to do; all ranks then do so. `world` is the caller's: a failure here is told to the
// others, and NCCL given up, as after any other (Fail).
void Meet(Request& request, Clock::time_point begin, std::unique_ptr<World>& world,
          Problems& problems) {
  const at::Device device = request.device;
  World::Connect(request.info, device, world);
  if (request.setup.config.parallel.automatic) SettleLayout(*world, request.setup, problems);
  if (!problems.empty()) return;
  const ParallelConfig& parallel = request.setup.config.parallel;
  world->MakeGroups(
      Mesh(request.info.size, static_cast<int>(parallel.tp),
           static_cast<int>(request.setup.config.shard_size), static_cast<int>(parallel.pp),
           static_cast<int>(parallel.ep), static_cast<int>(parallel.cp)),
      /*ring=*/parallel.Chunks() > 1);
  world->GatherRows({0});
  if (request.info.rank == 0) {
    const char* backend = request.info.size == 1 ? "none" : device.is_cuda() ? "nccl" : "gloo";
    std::printf("first_collective_s=%.3f ranks=%d backend=%s device=%s\n",
                std::chrono::duration<double>(Clock::now() - begin).count(), request.info.size,
                backend, device.str().c_str());
    std::fflush(stdout);
  }
  if (device.is_cuda()) {
    EndByOurWords(request.info.rank, [world = world.get()](const std::string& why) {
      ::alarm(kAbortLimitS);
      world->AnnounceFailure(why);
    });
    world->WatchFailures([rank = request.info.rank, world = world.get()](const std::string& why) {
      std::fprintf(stderr, "rank %d gives up waiting for others, because of %s\n", rank,
                   why.c_str());
      std::fflush(nullptr);
      ::alarm(kAbortLimitS);
      world->Abort();
      ::_exit(1);
    });
  }
}

}  // namespace

int Train(const TrainOptions& options) {
  const Clock::time_point begin = Clock::now();
  // A lost peer makes c10d warn with a stack trace for each of its sockets; what matters is said by
  // us, in one line.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  StopOnSignals();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  Problems problems;
  Request request = ReadRequest(options, problems);
  if (!problems.empty()) return Refuse(options.config_path, problems);
  if (request.device.is_cuda())
    c10::cuda::set_device(request.device.index());  // what names no device means this rank's
  PrepareProcess(request.device.is_cuda(), request.info.local_size, request.setup.config);
  std::thread read_ahead = StartReadingAhead(request);
  at::NoGradGuard no_grad;
  std::unique_ptr<World> world;
  std::unique_ptr<Run> run;
  try {
    Meet(request, begin, world, problems);
    if (!problems.empty()) {
      if (read_ahead.joinable()) read_ahead.join();
      if (world->rank() == 0) Refuse(options.config_path, problems);
      world->GatherRows({0});
      return kRefused;
    }
    run = std::make_unique<Run>(std::move(request.setup), world.get(), options.dump_tokens,
                                options.metrics);
    if (read_ahead.joinable()) read_ahead.join();
    const int code = run->Go();
    world->StopWatching();
    if (code != 0 && code != kRefused) world->AnnounceFailure("failed after its last step");
    // Rank 0 hosts the store and may not leave while others still look for it.
    world->GatherRows({0});
    return code;
  } catch (const std::exception& e) {
    if (read_ahead.joinable()) read_ahead.detach();
    Fail(e, request.info.rank, world.get(), run.get(), request.device.is_cuda());
  }
}

}  // namespace muster::trainer
