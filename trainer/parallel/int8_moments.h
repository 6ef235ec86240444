// AdamW's moments in 8 bits (8-bit optimizers, arXiv 2110.02861, section 2; ops/low_bits.h): codes
// of dynamic maps, signed for exp_avg and unsigned for exp_avg_sq, with a scale for each *block*.
// A block is 256 elements of a parameter, from a multiple of 256 on; where a rank's owned range, or
// its slice, cuts one, each part has a scale of its own. Embeddings, and parameters of less than
// 4,096 elements as a whole, stay fp32 (*exact*), whatever part of them a rank has.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>

namespace muster::trainer {

class FlatLayout;
struct Segment;

class Int8Moments {
 public:
  enum Which { kExpAvg, kExpAvgSq };
  // Owned elements that follow each other in a parameter, in the order of ForEachRun.
  struct Run {
    int64_t begin = 0, numel = 0;  // in the owned range
    int64_t in_parameter = 0;      // of its first element
    int64_t first = 0;             // block of a coded run; of an exact one, place among the exact
    bool exact = false;

    int64_t lead() const;    // elements of its first block that aren't in it
    int64_t blocks() const;  // that it touches
  };

  Int8Moments(const FlatLayout& layout, int64_t owned_begin, int64_t owned_numel,
              at::Device device);
  static bool IsExact(const Segment& segment);
  // Whether a flat has anything to be coded.
  static bool IsFor(const FlatLayout& layout);
  // Bytes of both moments of a rank that owns `owned_numel` elements, wherever they lie.
  static int64_t Bytes(const FlatLayout& layout, int64_t owned_numel);
  int64_t bytes() const;

  const std::vector<Run>& runs() const { return runs_; }

  // Calls `update` for parts of a run that make it up, from several threads: owned elements
  // [begin, end) and their moments in fp32, which it changes and which are coded again. On the
  // host.
  using Update = std::function<void(int64_t begin, int64_t end, float* exp_avg, float* exp_avg_sq)>;
  void UpdateOnHost(const Run& run, const Update& update);
  // The same by ATen's operations on any device, one part after the other: moments are tensors
  // [end - begin], which stand in a pack of 8 elements where their first does in the owned range.
  using UpdateTensors =
      std::function<void(int64_t begin, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq)>;
  void UpdateByAten(const Run& run, const UpdateTensors& update);

  // Owned elements from `begin` on as fp32 on the host, as a checkpoint has them: SetOwned of all
  // of them gives the same codes and scales again, where blocks are cut alike.
  void Copy(Which which, int64_t begin, const at::Tensor& out) const;
  // Takes over values, fp32 [owned].
  void SetOwned(Which which, const at::Tensor& values);

 private:
  struct Moment {
    at::Tensor codes;   // uint8 [owned]
    at::Tensor scales;  // fp32, by block
    at::Tensor exact;   // fp32
  };
  at::Tensor Values(Which which, const Run& run, int64_t block, int64_t blocks) const;
  void Keep(Which which, const Run& run, int64_t block, const at::Tensor& values);
  static int64_t MostBlocks(const FlatLayout& layout, int64_t owned_numel);
  static int64_t ExactNumel(const FlatLayout& layout);

  Moment of_[2];
  std::vector<Run> runs_;
};

// Blocks of values on any device, by ATen's operations: fp32 [blocks, 256] into uint8 codes of that
// shape and fp32 [blocks]; and back.
struct CodedBlocks {
  at::Tensor codes, scales;
};
CodedBlocks QuantiseByAten(const at::Tensor& values, bool is_signed);
at::Tensor DequantiseByAten(const CodedBlocks& blocks, bool is_signed);

}  // namespace muster::trainer
