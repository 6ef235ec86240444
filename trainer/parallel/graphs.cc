#include "trainer/parallel/graphs.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace muster::trainer {
namespace {

// Steps by plain launches before anything is recorded.
constexpr int kPlainSteps = 1;
// Documents that are left room for: eight a row, or one in 256 tokens.
constexpr int64_t kDocumentsPerRow = 8, kTokensPerDocument = 256;

class CudaGraph : public Graph {
 public:
  CudaGraph(c10::cuda::CUDAStream stream, at::MempoolId_t pool) : stream_(stream), pool_(pool) {}

  std::vector<at::Tensor> Record(const Work& work) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);  // the default stream can't be recorded
    // Thread-local: NCCL's watchdog may ask for events meanwhile.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    std::vector<at::Tensor> results;
    try {
      results = work();
    } catch (const std::exception& e) {
      try {
        graph_.capture_end();
      } catch (const std::exception&) {
        // The stream may be out of it, but torch's allocators still take what follows for the
        // graph's. The first reason is the one to tell.
        throw Stuck(e.what());
      }
      static_cast<void>(cudaGetLastError());
      throw;
    }
    graph_.capture_end();
    return results;
  }

  void Replay() override { graph_.replay(); }

 private:
  const c10::cuda::CUDAStream stream_;
  const at::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

MakeGraph CudaGraphs(at::Device device) {
  return [device, stream = std::optional<c10::cuda::CUDAStream>(),
          pool = at::MempoolId_t()]() mutable -> std::unique_ptr<Graph> {
    if (!stream) {
      stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
      pool = at::cuda::graph_pool_handle();
      // What plain steps left to the allocator isn't the graphs'.
      c10::cuda::CUDACachingAllocator::emptyCache();
    }
    return std::make_unique<CudaGraph>(*stream, pool);
  };
}

BlockGraphs::BlockGraphs(const std::vector<std::unique_ptr<Block>>& blocks, RecomputeMode recompute,
                         MakeGraph make)
    : blocks_(blocks), recompute_(recompute), make_(std::move(make)), layers_(blocks.size()) {}

void BlockGraphs::Begin(const BatchMeta& meta) {
  way_ = kPlain;
  if (off_ || steps_ <= kPlainSteps || meta.loss_only || last() < 1) return;
  if (!std::all_of(blocks_.begin() + 1, blocks_.end() - 1,
                   [&](const auto& block) { return block->Recordable(meta); }))
    return;
  if (!recorded_) Prepare(meta);
  if (!Fits(meta)) return;
  TakeOver(meta);
  way_ = recorded_ ? kReplay : kRecord;
  if (way_ == kReplay) ++replayed_;
}

bool BlockGraphs::Fits(const BatchMeta& meta) const {
  return meta.batch == meta_.batch && meta.length == meta_.length &&
         meta.positions.defined() == meta_.positions.defined() &&
         meta.in_documents.defined() == meta_.in_documents.defined() &&
         meta.row_numbers.defined() == meta_.row_numbers.defined() &&
         meta.sequences.bounds.defined() == meta_.sequences.bounds.defined() &&
         (!meta.sequences.bounds.defined() ||
          meta.sequences.bounds.numel() <= meta_.sequences.bounds.numel());
}

void BlockGraphs::Prepare(const BatchMeta& meta) {
  meta_ = {.batch = meta.batch, .length = meta.length};
  if (meta.positions.defined()) meta_.positions = at::empty_like(meta.positions);
  if (meta.in_documents.defined()) meta_.in_documents = at::empty_like(meta.in_documents);
  if (meta.row_numbers.defined()) meta_.row_numbers = at::empty_like(meta.row_numbers);
  if (meta.sequences.bounds.defined()) {
    const int64_t documents =
        meta.batch * std::max(kDocumentsPerRow, meta.length / kTokensPerDocument);
    meta_.sequences.bounds = at::empty({documents + 1}, meta.sequences.bounds.options());
    meta_.sequences.longest = meta.length;  // an upper bound does
  }
}

// Brings what differs between micro-batches to where graphs read it.
void BlockGraphs::TakeOver(const BatchMeta& meta) {
  if (meta.positions.defined()) meta_.positions.copy_(meta.positions);
  if (meta.in_documents.defined()) meta_.in_documents.copy_(meta.in_documents);
  if (meta.row_numbers.defined()) meta_.row_numbers.copy_(meta.row_numbers);
  if (!meta.sequences.bounds.defined()) return;
  const int64_t given = meta.sequences.bounds.numel();
  meta_.sequences.bounds.narrow(0, 0, given).copy_(meta.sequences.bounds);
  meta_.sequences.bounds.narrow(0, given, meta_.sequences.bounds.numel() - given)
      .fill_(static_cast<int64_t>(meta.batch * meta.length));  // empty ones
}

at::Tensor BlockGraphs::Forward(int block, const at::Tensor& x, Saved& saved) {
  Layer& layer = layers_[block];
  if (block == 1) {
    if (way_ == kRecord) x_ = at::empty_like(x);
    x_.copy_(x);
  }
  if (way_ == kReplay) {
    layer.forward->Replay();
    return block == last() ? y_ : at::Tensor();
  }
  const at::Tensor& input = block == 1 ? x_ : x;
  layer.forward = make_();
  try {
    std::vector<at::Tensor> made = layer.forward->Record([this, block, input] {
      Saved kept;
      std::vector<at::Tensor> results = {blocks_[block]->Forward(input, meta_, kept)};
      blocks_[block]->Drop(kept, recompute_);
      results.insert(results.end(), kept.begin(), kept.end());
      return results;
    });
    layer.forward->Replay();
    saved.assign(made.begin() + 1, made.end());
    if (block == last()) y_ = made[0];
    return made[0];
  } catch (const Graph::Stuck& e) {
    TORCH_CHECK(false, "a layer's forward can't be recorded; set cuda_graphs: false (", e.what(),
                ")");
  } catch (const std::exception& e) {
    // The layers before it have run; their graphs stay, as what they made lies in their memory.
    const std::string what = e.what();
    std::fprintf(stderr, "note: cuda_graphs is off from here on: a layer can't be recorded: %s\n",
                 what.substr(0, what.find('\n')).c_str());
    layer.forward.reset();
    off_ = true, way_ = kPlain;
    at::Tensor y = blocks_[block]->Forward(input, meta_, saved);
    blocks_[block]->Drop(saved, recompute_);
    return y;
  }
}

at::Tensor BlockGraphs::Backward(int block, const at::Tensor& dy, Saved& saved) {
  Layer& layer = layers_[block];
  if (block == last()) {
    if (way_ == kRecord) dy_ = at::empty_like(dy);
    dy_.copy_(dy);
  }
  if (way_ == kReplay) {
    layer.backward->Replay();
    return block == 1 ? dx_ : at::Tensor();
  }
  layer.backward = make_();
  // `kept` goes as the backward goes on, and so does its memory to what comes behind it.
  const Graph::Work work = [this, block, input = block == last() ? dy_ : dy,
                            kept = std::move(saved)]() mutable -> std::vector<at::Tensor> {
    if (recompute_ != RecomputeMode::kNone) blocks_[block]->Recompute(meta_, kept);
    return {blocks_[block]->Backward(input, meta_, kept)};
  };
  saved.clear();
  at::Tensor dx;
  try {
    dx = layer.backward->Record(work)[0];
  } catch (const std::exception& e) {
    TORCH_CHECK(false, "a layer's backward can't be recorded; set cuda_graphs: false (", e.what(),
                ")");
  }
  layer.backward->Replay();
  if (block == 1) dx_ = dx, recorded_ = true;
  return dx;
}

}  // namespace muster::trainer
