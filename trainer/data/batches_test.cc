#include "trainer/data/batches.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// Row g: a document of g % 3 + 1 tokens and one of 2; every other target counts.
class Rows : public Packer {
 public:
  absl::Status Get(int64_t row, Sequence& out) override {
    threads = at::get_num_threads();
    const int64_t first = row % 3 + 1;
    out = {};
    for (int64_t i = 0; i < first + 2; ++i) {
      out.tokens.push_back(100 * row + i);
      out.targets.push_back(100 * row + i + 1);
      out.counts.push_back(i % 2 == 0);
    }
    out.bounds = {0, first, first + 2};
    return absl::OkStatus();
  }
  int64_t rows_per_epoch() const override { return 10; }
  int64_t row_length_max() const override { return 5; }
  bool uniform() const override { return false; }
  int threads = 0;  // that what is computed beside the last row may use
};

TEST(BatchReader, RanksTogetherHoldTheGlobalBatchOnceWhateverTheirNumber) {
  Rows packer;
  for (const int ranks : {1, 2, 3, 5, 7}) {
    double weight = 0;
    int64_t sum = 0;
    size_t micro_batches = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchReader reader(&packer, /*global_batch=*/5, /*micro_batch=*/2, rank, ranks, at::kCPU);
      const StepBatches step = *reader.Read(5);
      // Rows 5..9 have 5, 3, 4, 5, 3 tokens and 3, 2, 2, 3, 2 targets that count.
      EXPECT_EQ(step.target_tokens, 12);
      EXPECT_EQ(step.tokens, 20);
      EXPECT_EQ(step.attended_tokens, 9 + 1 + 4 + 9 + 1 + 5 * 4);
      if (rank == 0) micro_batches = step.micro.size();
      EXPECT_EQ(step.micro.size(), micro_batches) << "every rank runs the same micro-batches";
      for (const BatchMeta& meta : step.micro) {
        EXPECT_EQ(meta.ids.size(0), meta.batch * meta.length);
        weight += meta.weights.sum().item<double>();
        for (const ops::DocumentSpan& span : meta.documents) {
          const at::Tensor positions =
              meta.positions.narrow(0, span.row * meta.length + span.begin, span.end - span.begin);
          EXPECT_TRUE(positions.equal(at::arange(span.end - span.begin)));
          sum += meta.ids.narrow(0, span.row * meta.length + span.begin, span.end - span.begin)
                     .sum()
                     .item<int64_t>();
        }
      }
    }
    EXPECT_NEAR(weight, 1, 1e-6) << ranks;
    EXPECT_EQ(sum, 5 * 500 + 10 + 3 * 600 + 3 + 4 * 700 + 6 + 5 * 800 + 10 + 3 * 900 + 3) << ranks;
  }
}

// Remembers which rows were read.
class Remembering : public Rows {
 public:
  absl::Status Get(int64_t row, Sequence& out) override {
    read.push_back(row);
    return Rows::Get(row, out);
  }
  absl::StatusOr<RowCounts> Count(int64_t row) override {
    Sequence out;
    if (absl::Status s = Rows::Get(row, out); !s.ok()) return s;
    return CountsOf(out);
  }
  std::vector<int64_t> read;
};

TEST(BatchReader, ARankReadsItsOwnRowsAlone) {
  const std::vector<int64_t> wanted[] = {{5, 6}, {7, 8}, {9}};
  for (int rank = 0; rank < 3; ++rank) {
    Remembering packer;
    BatchReader reader(&packer, /*global_batch=*/5, /*micro_batch=*/2, rank, 3, at::kCPU);
    const StepBatches step = *reader.Read(5);
    EXPECT_EQ(step.target_tokens, 12);
    EXPECT_EQ(step.tokens, 20);
    EXPECT_EQ(packer.read, wanted[rank]) << rank;
  }
}

TEST(BatchReader, WhatIsReadAheadIsWhatWouldBeRead) {
  Rows packer, other;
  BatchReader reader(&packer, 4, 2, 0, 1, at::kCPU), plain(&other, 4, 2, 0, 1, at::kCPU);
  const auto expect = [&](int64_t first) {
    const StepBatches found = *reader.Read(first), wanted = *plain.Read(first);
    ASSERT_EQ(found.micro.size(), wanted.micro.size());
    for (size_t m = 0; m < wanted.micro.size(); ++m) {
      EXPECT_TRUE(at::equal(found.micro[m].ids, wanted.micro[m].ids));
      EXPECT_TRUE(at::equal(found.micro[m].weights, wanted.micro[m].weights));
    }
  };
  reader.ReadAhead(4);
  expect(4);
  reader.ReadAhead(8);
  expect(12);  // another step than what was read ahead
  expect(8);
  reader.ReadAhead(16);
  EXPECT_EQ(reader.ReadIds(0)->size(), plain.ReadIds(0)->size()) << "beside what is read ahead";
  expect(16);
  reader.ReadAhead(20);  // and nobody takes it
}

TEST(BatchReader, ReadsAheadInOneThread) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  Rows packer;
  BatchReader reader(&packer, 4, 2, 0, 1, at::kCPU);
  EXPECT_TRUE(reader.Read(0).ok());
  EXPECT_EQ(packer.threads, 3);
  reader.ReadAhead(4);
  EXPECT_TRUE(reader.Read(4).ok());
  EXPECT_EQ(packer.threads, 1);
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(threads);
}

TEST(BatchReader, RowsBehindTheLastWeighNothing) {
  Rows packer;
  BatchReader reader(&packer, 4, 4, 0, 1, at::kCPU, /*rows=*/6);
  const StepBatches step = *reader.Read(4);  // rows 4 and 5, of 4 and 5 tokens
  EXPECT_EQ(step.tokens, 9);
  EXPECT_EQ(step.target_tokens, 5);
  EXPECT_EQ(step.micro[0].documents.size(), 4u);
  EXPECT_NEAR(step.micro[0].weights.sum().item<double>(), 1, 1e-6);
}

// Rows of three tokens each, without documents.
class Plain : public Rows {
 public:
  absl::Status Get(int64_t row, Sequence& out) override {
    const absl::Status status = Rows::Get(row, out);
    out.tokens.resize(3), out.targets.resize(3), out.counts.resize(3), out.bounds.clear();
    return status;
  }
};

TEST(BatchReader, RowsThatFillUpAreInNoDocument) {
  Plain packer;
  const auto micro = [&](int64_t rows, const ContextShare& context) {
    BatchReader reader(&packer, 4, 4, 0, 1, at::kCPU, rows, context);
    return reader.Read(4)->micro[0];
  };
  EXPECT_FALSE(micro(/*rows=*/8, {}).in_documents.defined());
  const BatchMeta filled = micro(/*rows=*/6, {});
  EXPECT_FALSE(filled.positions.defined()) << "attention goes on as if they were rows";
  EXPECT_TRUE(at::equal(filled.in_documents, at::tensor({1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0},
                                                        at::TensorOptions().dtype(at::kFloat))));
  double tokens = 0;
  for (const int rank : {0, 1})
    tokens += micro(6, {rank, 2, ContextSharding::kSequence}).in_documents.sum().item<double>();
  EXPECT_EQ(tokens, 6);
}

}  // namespace
}  // namespace muster::trainer
