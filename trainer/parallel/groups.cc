#include "trainer/parallel/groups.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

constexpr size_t kTextBytes = 1000;
constexpr char kFailureKey[] = "muster/failure";
constexpr std::chrono::milliseconds kWatchInterval{500};
constexpr std::chrono::milliseconds kMeetingInterval{50};

const char* Env(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// torch's flight recorder keeps the state of groups in a map that it changes without its lock
// (torch 2.11, FlightRecorderDetail.hpp, recordWithResetEnabled): two groups whose first
// collectives begin at once, in two threads, corrupt it. It stays off unless somebody asks for it.
// Before main, because threads may read the environment after that.
[[maybe_unused]] const int kNoFlightRecorder =
    Env("TORCH_NCCL_TRACE_BUFFER_SIZE") == nullptr ? ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0) : 0;
// Without it there is nothing to dump at a timeout either, for which torch's watchdog would wait a
// minute.
[[maybe_unused]] const int kNoDump = Env("TORCH_NCCL_TRACE_BUFFER_SIZE") == nullptr
                                         ? ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0)
                                         : 0;

absl::Status ReadInt(const char* name, int minimum, int maximum, bool required, int& out) {
  const char* text = Env(name);
  if (text == nullptr) {
    if (required)
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is not set, but RANK is; start under Muster or torchrun, which set all of them"));
    return absl::OkStatus();
  }
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < minimum || value > maximum) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", text, " is no number from ", minimum, " to ", maximum));
  }
  out = value;
  return absl::OkStatus();
}

bool IsLoopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

// This host's address on its way to `host`; "" if there is no way, or only by a loopback that is
// not wanted. Nothing is sent: to connect a datagram socket only chooses the way.
std::string AddressTowards(const std::string& host, bool or_loopback) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd = ::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    auto* address = reinterpret_cast<sockaddr*>(&local);
    char text[NI_MAXHOST];
    const bool known =
        ::connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
        ::getsockname(fd, address, &length) == 0 &&
        ::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(fd);
    if (known && (or_loopback || !IsLoopback(text))) return text;
  }
  return "";
}

// Where the ranks of a group find each other. Who waits there for others looks between short waits
// whether one has announced a failure: it will not come.
class MeetingStore : public c10d::PrefixStore {
 public:
  using c10d::PrefixStore::PrefixStore;

  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return c10d::PrefixStore::get(key);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    using std::chrono::milliseconds, std::chrono::steady_clock;
    const steady_clock::time_point end = steady_clock::now() + timeout;
    // Asked, not waited for in turns: the store's own wait warns each time that it gives up.
    for (milliseconds pause(1); !check(keys); pause = std::min(2 * pause, kMeetingInterval)) {
      TORCH_CHECK(!store_->check({kFailureKey}),
                  "gave up waiting for the other ranks to come, as one has failed");
      if (steady_clock::now() + pause >= end) return c10d::PrefixStore::wait(keys, milliseconds(1));
      std::this_thread::sleep_for(pause);
    }
  }
};

std::shared_ptr<::gloo::transport::Device> GlooDevice(const WorldInfo& info) {
  if (const char* interface = Env("GLOO_SOCKET_IFNAME"))
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  const std::string address = GlooAddress(info);
  return address.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                         : c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

std::string GlooAddress(const WorldInfo& info) {
  if (IsLoopback(info.master_addr)) return "127.0.0.1";
  const std::string address =
      AddressTowards(info.master_addr, /*or_loopback=*/info.local_size == info.size);
  // Rank 0's host may know its own name as loopback: then by the way to everywhere else.
  return address.empty() ? AddressTowards("198.51.100.1", /*or_loopback=*/false) : address;
}

absl::StatusOr<WorldInfo> WorldInfo::FromEnvironment() {
  WorldInfo info;
  if (Env("RANK") == nullptr) return info;
  constexpr int kMost = 1 << 20;
  if (absl::Status s = ReadInt("WORLD_SIZE", 1, kMost, true, info.size); !s.ok()) return s;
  if (absl::Status s = ReadInt("RANK", 0, info.size - 1, true, info.rank); !s.ok()) return s;
  if (absl::Status s = ReadInt("LOCAL_RANK", 0, kMost, true, info.local_rank); !s.ok()) return s;
  if (absl::Status s = ReadInt("LOCAL_WORLD_SIZE", 1, kMost, false, info.local_size); !s.ok())
    return s;
  if (info.size == 1) return info;
  if (absl::Status s = ReadInt("MASTER_PORT", 1, 65535, true, info.master_port); !s.ok()) return s;
  if (Env("MASTER_ADDR") == nullptr)
    return absl::InvalidArgumentError("MASTER_ADDR is not set, but WORLD_SIZE is above 1");
  info.master_addr = Env("MASTER_ADDR");
  return info;
}

absl::StatusOr<at::Device> ChooseDevice(int local_rank) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (::access("/dev/nvidiactl", F_OK) != 0 || (visible != nullptr && *visible == '\0'))
    return at::Device(at::kCPU);
  // Not torch's count, which is 0 where CUDA can't start: a gang of GPUs would train on CPUs, or
  // wait for this rank.
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return at::Device(at::kCPU);
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this host has NVIDIA's driver, but CUDA can't start: ", cudaGetErrorString(error),
        ". CUDA ", CUDART_VERSION / 1000,
        " needs a driver that is new enough (nvidia-smi says for which CUDA it is); "
        "CUDA_VISIBLE_DEVICES= trains on the CPU"));
  }
  if (count > 1 && local_rank >= count) {
    return absl::FailedPreconditionError(absl::StrCat("LOCAL_RANK=", local_rank,
                                                      ", but this process sees ", count,
                                                      " GPUs: a rank needs one of its own"));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % count));
}

std::string DeviceName(at::Device device) {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess ? properties.name : "";
}

int ComputeCapability(at::Device device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index());
  return 10 * major + minor;
}

c10::intrusive_ptr<c10d::Store> World::MeetStore(bool serve) const {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info_.master_port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = kStartTimeout;
  auto tcp = c10::make_intrusive<c10d::TCPStore>(info_.master_addr, options);
  // A restart under torchrun meets the launcher's old store again: its keys are another
  // generation's.
  const char* restart = Env("TORCHELASTIC_RESTART_COUNT");
  return c10::make_intrusive<c10d::PrefixStore>(
      absl::StrCat("muster/", restart == nullptr ? "0" : restart), tcp);
}

std::unique_ptr<World> World::Connect(const WorldInfo& info, at::Device device) {
  std::unique_ptr<World> world;
  Connect(info, device, world);
  return world;
}

void World::Connect(const WorldInfo& info, at::Device device, std::unique_ptr<World>& world) {
  world.reset(new World(info, device));
  if (info.size == 1) return;
  // Under torchrun the launcher may host the store itself.
  const char* launcher_store = Env("TORCHELASTIC_USE_AGENT_STORE");
  world->store_ = world->MeetStore(
      info.rank == 0 && !(launcher_store != nullptr && std::strcmp(launcher_store, "True") == 0));
  world->backend_ = world->MakeBackend("all", info.rank, info.size);
  world->MakeGroups(Mesh(info.size, 1, 0));
}

c10::intrusive_ptr<c10d::Backend> World::MakeBackend(const std::string& name, int rank,
                                                     int size) const {
  if (size == 1) return nullptr;
  if (device_.is_cuda()) {
    auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    // What is computed next often waits for it, and its kernels are small.
    auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    nccl->timeout = kStartTimeout;
    auto made = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, nccl);
    made->setBoundDeviceId(device_);
    // Now, as Gloo does: else the first message makes the communicator, and blocks its sender until
    // the other asks for it. Of two stages that each wait for the other's first one none would go
    // on.
    if (size > 1) made->eagerConnectSingleDevice(device_);
    return made;
  }
  auto gloo = c10d::ProcessGroupGloo::Options::create(kStartTimeout);
  gloo->devices.push_back(GlooDevice(info_));
  auto store = c10::make_intrusive<MeetingStore>(name, store_);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
}

// `ranks`: in order; this one among them.
Group World::MakeGroup(const std::string& name, const std::vector<int>& ranks) {
  const auto [made, fresh] = made_.try_emplace(ranks);
  if (fresh) {
    const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), info_.rank) -
                                       ranks.begin()),
              size = static_cast<int>(ranks.size());
    made->second = {place, size,
                    size == info_.size
                        ? backend_
                        : MakeBackend(absl::StrCat(name, ranks.front(), "of", size), place, size)};
  }
  return made->second;
}

// In one order on every rank.
void World::MakeGroups(const Mesh& mesh, bool ring) {
  TORCH_CHECK(mesh.size() == info_.size, "a mesh of ", mesh.size(), " for ", info_.size, " ranks");
  mesh_ = mesh;
  const auto holders = [&](const Holding& holding) {
    const HolderRanks ranks = HoldersOf(mesh, info_.rank, holding);
    const std::string ends = holding.both_ends ? "ends-" : holding.experts ? "experts-" : "";
    // Copies of slices and of what isn't sliced are on the same ranks.
    return Holders{MakeGroup(ends + "data", ranks.whole),
                   MakeGroup(holding.experts ? "experts-shard" : "shard", ranks.shard),
                   MakeGroup(ends + "replicate", ranks.replicate)};
  };
  const int stage = mesh.PpIndex(info_.rank);
  const bool has_ends = mesh.pp() > 1 && (stage == 0 || stage + 1 == mesh.pp());
  for (const bool sliced : {false, true}) {
    own_[sliced ? 1 : 0] = holders({sliced, false});
    if (has_ends) ends_[sliced ? 1 : 0] = holders({sliced, true});
  }
  tensor_ = MakeGroup("tensor", mesh.Along(info_.rank, {MeshDim::kTp}));
  context_ = MakeGroup("context", mesh.Along(info_.rank, {MeshDim::kCp}));
  experts_ = MakeGroup("experts", mesh.ExpertRanks(info_.rank));
  of_experts_ = holders({false, false, true});
  MakeLinks(ring);
}

// By stages: whoever waits for its neighbour to come, waits for one that has fewer to make.
void World::MakeLinks(bool ring) {
  const int stages = mesh_.pp(), stage = mesh_.PpIndex(info_.rank);
  for (int from = 0; from < stages && stages > 1; ++from) {
    const int to = (from + 1) % stages;
    if ((stage != from && stage != to) || (to == 0 && !ring)) continue;
    MeshNumbers place = mesh_.PlaceOf(info_.rank);
    place[MeshDim::kPp] = from;
    const std::string name = absl::StrCat("from", mesh_.RankAt(place));
    const int own = stage == from ? 0 : 1;
    const Link forward{1 - own, MakeBackend("forward-" + name, own, 2)},
        backward{1 - own, MakeBackend("backward-" + name, own, 2)};
    if (own == 0)
      pipeline_.forward_to = forward, pipeline_.backward_from = backward;
    else
      pipeline_.forward_from = forward, pipeline_.backward_to = backward;
  }
}

std::vector<c10::intrusive_ptr<c10d::Backend>> World::Backends() const {
  std::vector<c10::intrusive_ptr<c10d::Backend>> all;
  for (const auto& [ranks, group] : made_) {
    if (group.backend) all.push_back(group.backend);
  }
  for (const Link* link : {&pipeline_.forward_from, &pipeline_.forward_to, &pipeline_.backward_from,
                           &pipeline_.backward_to}) {
    if (link->backend) all.push_back(link->backend);
  }
  return all;
}

World::~World() { StopWatching(); }

void World::WatchFailures(std::function<void(const std::string&)> on_failure) {
  if (!store_) return;
  watching_ = true;
  watch_ = std::thread([this, on_failure = std::move(on_failure)] {
    std::string found;
    try {
      if (device_.is_cuda())
        c10::cuda::set_device(device_.index());  // a failure gives up its kernels from this thread
      const c10::intrusive_ptr<c10d::Store> store = MeetStore(/*serve=*/false);
      std::unique_lock lock(watch_mutex_);
      while (watching_ &&
             !watch_stops_.wait_for(lock, kWatchInterval, [&] { return !watching_; })) {
        lock.unlock();
        if (store->check({kFailureKey})) {
          const std::vector<uint8_t> text = store->get(kFailureKey);
          found.assign(text.begin(), text.end());
        }
        lock.lock();
        if (!found.empty()) break;
      }
    } catch (const std::exception& e) {
      found = "rank 0, which holds the store, is gone";
    }
    {
      const std::lock_guard lock(watch_mutex_);
      if (!watching_) return;
    }
    if (!found.empty()) on_failure(found);
  });
}

void World::StopWatching() {
  {
    const std::lock_guard lock(watch_mutex_);
    watching_ = false;
  }
  watch_stops_.notify_all();
  if (watch_.joinable()) watch_.join();
}

void World::Abort() noexcept {
  for (const c10::intrusive_ptr<c10d::Backend>& backend : Backends()) {
    try {
      backend->abort();
    } catch (const std::exception&) {
      // The process ends all the same.
    }
  }
}

at::Tensor World::RegisteredMemory(const Group& group, int64_t bytes) {
  if (size() == 1) return {};
  const auto on_all = [this](bool here) {
    const std::vector<std::vector<double>> rows = GatherRows({here ? 1.0 : 0.0});
    return std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row[0] != 0; });
  };
  // Asked before any is made: what isn't taken then stays with the process group, and is lost.
  const char* registers = Env("NCCL_LOCAL_REGISTER");
  const bool wanted = registers == nullptr || std::strcmp(registers, "0") != 0;
  if (!on_all(wanted && bytes > 0 && group.backend &&
              group.backend->supportsTensorAlloc(device_.index())))
    return {};
  at::Tensor memory;
  try {
    memory =
        group.backend->allocateTensor(bytes, at::TensorOptions().dtype(at::kByte).device(device_));
  } catch (const std::exception&) {
    // Plain memory does as well.
  }
  return on_all(memory.defined()) ? memory : at::Tensor();
}

std::vector<std::vector<double>> World::GatherRows(const std::vector<double>& row) {
  if (size() == 1) return {row};
  const auto width = static_cast<int64_t>(row.size());
  at::Tensor mine = at::empty({width}, at::kDouble);
  std::copy(row.begin(), row.end(), mine.data_ptr<double>());
  mine = mine.to(device_);
  at::Tensor all = at::empty({size() * width}, mine.options());
  backend_->_allgather_base(all, mine, {})->wait();
  all = all.cpu();
  std::vector<std::vector<double>> rows;
  for (int r = 0; r < size(); ++r) {
    const double* begin = all.data_ptr<double>() + r * width;
    rows.emplace_back(begin, begin + width);
  }
  return rows;
}

std::vector<std::string> World::GatherTexts(const std::string& text) {
  if (size() == 1) return {text};
  at::Tensor mine = at::zeros({static_cast<int64_t>(kTextBytes)}, at::kByte);
  std::memcpy(mine.data_ptr<uint8_t>(), text.data(), std::min(text.size(), kTextBytes - 1));
  mine = mine.to(device_);
  at::Tensor all = at::empty({size() * static_cast<int64_t>(kTextBytes)}, mine.options());
  backend_->_allgather_base(all, mine, {})->wait();
  all = all.cpu();
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r)
    texts.emplace_back(reinterpret_cast<const char*>(all.data_ptr<uint8_t>()) + r * kTextBytes);
  return texts;
}

std::string World::Broadcast(const std::string& text) {
  if (size() == 1) return text;
  const double length = GatherRows({static_cast<double>(text.size())})[0][0];
  at::Tensor bytes = at::zeros({static_cast<int64_t>(length)}, at::kByte);
  if (rank() == 0) std::memcpy(bytes.data_ptr<uint8_t>(), text.data(), text.size());
  if (bytes.numel() == 0) return "";
  std::vector<at::Tensor> tensors = {bytes.to(device_)};
  backend_->broadcast(tensors, {})->wait();
  const at::Tensor host = tensors[0].cpu();
  return {reinterpret_cast<const char*>(host.data_ptr<uint8_t>()),
          static_cast<size_t>(host.numel())};
}

void World::SetTimeout(std::chrono::milliseconds timeout) {
  for (const c10::intrusive_ptr<c10d::Backend>& backend : Backends()) backend->setTimeout(timeout);
}

void World::AnnounceFailure(const std::string& why) noexcept {
  if (!store_) return;
  try {
    store_->setTimeout(std::chrono::seconds(1));
    const std::string text = absl::StrCat("rank ", rank(), ": ", why);
    store_->set(kFailureKey, std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {
    // The store's host may be the one that died; the others see that by themselves.
  }
}

std::string World::AnnouncedFailure() noexcept {
  if (!store_) return "";
  try {
    store_->setTimeout(std::chrono::milliseconds(200));
    const std::vector<uint8_t> text = store_->get(kFailureKey);
    return {text.begin(), text.end()};
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace muster::trainer
