// The process group of a run: c10d's own backends (Gloo on CPUs, NCCL on GPUs) met through a
// TCPStore, with torchrun's environment. Thin on purpose: collectives are called on c10d::Backend
// itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "trainer/parallel/mesh.h"

namespace muster::trainer {

// Rank and size as torchrun's environment gives them; without RANK a single process.
struct WorldInfo {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;

  // Fails on a half-set or contradictory environment, naming the variable.
  static absl::StatusOr<WorldInfo> FromEnvironment();
};

// The address, in numbers, that Gloo gives the other ranks for this one: the one from which this
// host reaches rank 0's. (A host's own name often stands for loopback: 127.0.1.1 on Debian.)
// Loopback only where MASTER_ADDR is, or where all ranks are on one host. "" where none is found.
std::string GlooAddress(const WorldInfo& info);

// How long a collective may take before the peers are given up, until everybody has done a step;
// then trainer.step_timeout_s.
inline constexpr std::chrono::minutes kStartTimeout{30};

// Ranks of the run that do something together. `backend` is null where a rank is alone.
struct Group {
  int rank = 0, size = 1;  // of this process, inside the group
  c10::intrusive_ptr<c10d::Backend> backend;
};

// Those that hold a flat (mesh.h's HolderRanks).
struct Holders {
  Group whole, shard, replicate;
};

// This rank and a neighbour in a pipeline, in which the neighbour is rank `other`. No backend:
// there is none.
struct Link {
  int other = 0;
  c10::intrusive_ptr<c10d::Backend> backend;
};
// Where what goes forward (activations) and backward (their gradients) comes from and goes to. Each
// has a group of its own, so that nothing waits behind what goes the other way.
struct PipelineGroups {
  Link forward_from, forward_to, backward_from, backward_to;
};

// All ranks of the run. Collectives of one group must be called in the same order by every rank.
// Not thread-safe. A single process has no backend: every collective is then a no-op, and no socket
// is opened.
class World {
 public:
  // Meets the other ranks (rank 0 hosts the store). Throws c10::Error when they don't come within
  // kStartTimeout, and on CPUs, as MakeGroups does, once one has announced that it failed.
  static std::unique_ptr<World> Connect(const WorldInfo& info, at::Device device);
  // The same into `world`, which is there also where that fails: it can then announce why.
  static void Connect(const WorldInfo& info, at::Device device, std::unique_ptr<World>& world);
  ~World();

  int rank() const { return info_.rank; }
  int size() const { return info_.size; }
  const WorldInfo& info() const { return info_; }
  at::Device device() const { return device_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

  // Makes the groups of a mesh of all ranks. `ring`: a pipeline's last stage hands on to its first.
  // Collective; before anything is sharded.
  void MakeGroups(const Mesh& mesh, bool ring = false);
  // Before MakeGroups all ranks are one shard group.
  const Mesh& mesh() const { return mesh_; }
  // The ranks that hold what this rank holds so.
  const Holders& holders(const Holding& holding) const {
    return holding.experts ? of_experts_
                           : (holding.both_ends ? ends_ : own_)[holding.sliced ? 1 : 0];
  }
  // The ranks that take the same rows, each with another slice of the weights.
  const Group& tensor() const { return tensor_; }
  // The ranks that take parts of the same rows.
  const Group& context() const { return context_; }
  // The ranks that take different tokens, each with other experts.
  const Group& experts() const { return experts_; }
  const PipelineGroups& pipeline() const { return pipeline_; }
  // Gloo has no direct reduce-scatter: an all-reduce is twice as fast there.
  bool prefers_all_reduce() const { return prefers_all_reduce_; }
  // For tests: CPUs go the way of GPUs, or back. Before anything is sharded.
  void PreferAllReduce(bool prefer) { prefers_all_reduce_ = prefer; }

  // `bytes` on the device that `group`'s messages are brought to and taken from without copies of
  // NCCL's own, where its process group can make such on every rank; else nothing. NCCL leaves open
  // what happens if only some ranks' memory is of that kind. What lies in it must be where it is on
  // the group's other ranks. Nothing where NCCL_LOCAL_REGISTER=0. Collective over all ranks.
  at::Tensor RegisteredMemory(const Group& group, int64_t bytes);

  // Each rank's `row` under the others', on the host: [size, row.size()].
  std::vector<std::vector<double>> GatherRows(const std::vector<double>& row);
  // Each rank's text, cut to 1,000 bytes.
  std::vector<std::string> GatherTexts(const std::string& text);
  // Rank 0's text, on every rank.
  std::string Broadcast(const std::string& text);

  void SetTimeout(std::chrono::milliseconds timeout);
  // Tells the others, through the store, why this rank leaves. Never throws.
  void AnnounceFailure(const std::string& why) noexcept;
  // What another rank announced ("rank 3: …"), or "". Waits briefly. Never throws.
  std::string AnnouncedFailure() noexcept;

  // Until StopWatching, looks twice a second, over a connection of its own, for what other ranks
  // announce, and calls `on_failure` with it once, from a thread of its own. Gloo tells of a lost
  // peer by itself; a rank whose GPU waits in an NCCL kernel for one that has failed learns of it
  // only so, or at the timeout.
  void WatchFailures(std::function<void(const std::string&)> on_failure);
  // Before the last collective: a rank 0 that has ended is no failure then.
  void StopWatching();
  // Gives up the collectives that are under way: NCCL's kernels end. From any thread; may block for
  // seconds.
  void Abort() noexcept;

 private:
  World(const WorldInfo& info, at::Device device)
      : info_(info), device_(device), prefers_all_reduce_(!device.is_cuda()) {}
  c10::intrusive_ptr<c10d::Store> MeetStore(bool serve) const;
  c10::intrusive_ptr<c10d::Backend> MakeBackend(const std::string& name, int rank, int size) const;
  Group MakeGroup(const std::string& name, const std::vector<int>& ranks);
  void MakeLinks(bool ring);
  std::vector<c10::intrusive_ptr<c10d::Backend>> Backends() const;

  WorldInfo info_;
  at::Device device_;
  bool prefers_all_reduce_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Mesh mesh_;
  Holders own_[2], ends_[2];  // of what is alike, and of slices
  Holders of_experts_;
  Group tensor_, context_, experts_;
  PipelineGroups pipeline_;
  std::map<std::vector<int>, Group> made_;  // by their ranks
  std::mutex watch_mutex_;
  std::condition_variable watch_stops_;
  bool watching_ = false;
  std::thread watch_;
};

// The device of this rank: its GPU where the machine has one, the CPU otherwise. Looks at /dev
// before it touches CUDA, so that a start without a GPU doesn't pay for its initialisation.
// FAILED_PRECONDITION: there is a driver that CUDA can't start with, or no GPU left.
absl::StatusOr<at::Device> ChooseDevice(int local_rank);
// A GPU's name as CUDA tells it.
std::string DeviceName(at::Device device);
// Its compute capability, 89 for 8.9.
int ComputeCapability(at::Device device);

}  // namespace muster::trainer
