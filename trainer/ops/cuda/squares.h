// Sums of squares that don't depend on the order of addition: each square is rounded to a multiple
// of 2^-64 and added to a whole number of 128 bits. So every sharding of a model, and every
// machine, finds the same gradient norm. For nvcc and for C++.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define MUSTER_ON_BOTH __host__ __device__
#else
#define MUSTER_ON_BOTH
#endif

namespace muster::trainer::kernels {

// A multiple of 2^-64, at most about 2^63; beyond that, and for what isn't finite, `out_of_range`
// isn't 0 and the number means nothing.
struct ExactSum {
  uint64_t low = 0, high = 0, out_of_range = 0;

  MUSTER_ON_BOTH void Add(const ExactSum& other) {
    const uint64_t sum = low + other.low, carry = sum < low ? 1 : 0;
    low = sum;
    high += other.high + carry;
    out_of_range |= other.out_of_range | (high >> 63);
  }
  // As a number; infinite where it is out of range.
  double Value() const {
    if (out_of_range != 0) return HUGE_VAL;
    return static_cast<double>(high) + static_cast<double>(low) * 0x1p-64;
  }
  // coarse · 2^-20 + fine · 2^-64
  MUSTER_ON_BOTH void Add(int64_t coarse, int64_t fine) {
    const uint64_t bits = static_cast<uint64_t>(coarse);
    Add({bits << 44, static_cast<uint64_t>(coarse >> 20), 0});
    Add({static_cast<uint64_t>(fine), static_cast<uint64_t>(fine >> 63), 0});
  }
};

// Numbers that leave, once a smaller one is added, their last place at 2^-20 and at 2^-64: what is
// added to their bits is the number in such units.
inline constexpr double kCoarse = 0x1.8p+32, kFine = 0x1.8p-12;
// Squares below this are taken apart by them.
inline constexpr double kSquareLimit = 0x1p+31;
// How many of them two sums of 64 bits can hold.
inline constexpr int64_t kSquaresAtOnce = 2048;

MUSTER_ON_BOTH inline int64_t BitsOf(double x) {
  union {
    double number;
    int64_t bits;
  } as;
  as.number = x;
  return as.bits;
}

// The square of one value, whatever it is.
MUSTER_ON_BOTH inline ExactSum ExactSquare(float value) {
  const double square = static_cast<double>(value) * value;
  ExactSum sum;
  if (square < kSquareLimit) {
    const double coarse = square + kCoarse, fine = (square - (coarse - kCoarse)) + kFine;
    sum.Add(BitsOf(coarse) - BitsOf(kCoarse), BitsOf(fine) - BitsOf(kFine));
  } else if (square < 0x1p+62) {  // its last place is above 2^-64
    const int64_t bits = BitsOf(square);
    const uint64_t digits =
        (static_cast<uint64_t>(bits) & 0xFFFFFFFFFFFFFull) | 0x10000000000000ull;
    const int shift = static_cast<int>(bits >> 52) - 1075 + 64;  // from 43 to 73
    sum.low = shift < 64 ? digits << shift : 0;
    sum.high = shift < 64 ? digits >> (64 - shift) : digits << (shift - 64);
  } else {
    sum.out_of_range = 1;
  }
  return sum;
}

// Adds values one after another, few of them in 128 bits.
class SquaresInOrder {
 public:
  MUSTER_ON_BOTH void Add(float value) {
    const double square = static_cast<double>(value) * value;
    if (!(square < kSquareLimit)) {
      sum_.Add(ExactSquare(value));
      return;
    }
    const double coarse = square + kCoarse, fine = (square - (coarse - kCoarse)) + kFine;
    coarse_ += BitsOf(coarse) - BitsOf(kCoarse);
    fine_ += BitsOf(fine) - BitsOf(kFine);
    if (++count_ == kSquaresAtOnce) Flush();
  }
  MUSTER_ON_BOTH const ExactSum& Sum() {
    Flush();
    return sum_;
  }

 private:
  MUSTER_ON_BOTH void Flush() {
    sum_.Add(coarse_, fine_);
    coarse_ = fine_ = count_ = 0;
  }
  ExactSum sum_;
  int64_t coarse_ = 0, fine_ = 0, count_ = 0;
};

}  // namespace muster::trainer::kernels
