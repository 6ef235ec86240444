// Figure `trainer-speed.adamw`: our AdamW kernel against ATen's fused one on one thread, taking
// turns (A B B A), the least of their times. `plain`: fp32 everything, no clipping. `training`:
// what a step of bf16 training needs, a clipped bf16 gradient in and bf16 weights out; ATen's
// kernel takes neither, so a conversion and a copy go with it.
//
//   muster-bench-adamw [ELEMENTS [ROUNDS]]      prints a line of JSON
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "trainer/optim/adamw_kernel.h"

namespace muster::trainer {
namespace {

struct Contest {
  double ours_s = 1e9, atens_s = 1e9;
};

Contest Race(int rounds, const std::function<void()>& ours, const std::function<void()>& atens) {
  Contest best;
  const auto timed = [](const std::function<void()>& run, double& least) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    least = std::min(
        least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  for (int round = 0; round < rounds; ++round) {
    timed(ours, best.ours_s);
    timed(atens, best.atens_s);
    timed(atens, best.atens_s);
    timed(ours, best.ours_s);
  }
  return best;
}

int Main(int argc, char** argv) {
  const c10::AutoGradMode no_grad(false);
  at::set_num_threads(1);
  const int64_t n = argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 24;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  AdamWStep step;
  step.beta1 = 0.9f, step.beta2 = 0.999f, step.one_minus_beta1 = 0.1f,
  step.one_minus_beta2 = 0.001f, step.step_size = 1e-4f, step.epsilon = 1e-8f, step.keep = 0.99999f;
  const at::Tensor gradient = at::randn({n}) * 0.01, gradient16 = gradient.to(at::kBFloat16);
  at::Tensor mine = at::randn({n}), mine_m = at::zeros({n}), mine_v = at::zeros({n}),
             mine16 = mine.to(at::kBFloat16);
  at::Tensor its = mine.clone(), its_m = at::zeros({n}), its_v = at::zeros({n}),
             its16 = mine16.clone(), count = at::ones({}), scratch = at::empty({n});
  const auto fused = [&](const at::Tensor& grad) {
    at::_fused_adamw_({its}, {grad}, {its_m}, {its_v}, {}, {count}, 1e-4, 0.9, 0.999, 0.1, 1e-8,
                      false, false);
  };
  AdamWSpan span{mine.data_ptr<float>(),
                 nullptr,
                 nullptr,
                 gradient.data_ptr(),
                 false,
                 mine_m.data_ptr(),
                 mine_v.data_ptr(),
                 false,
                 0,
                 n};
  const Contest plain =
      Race(rounds, [&] { UpdateAdamW(BestCpuForm(), step, span); }, [&] { fused(gradient); });
  span.weights = static_cast<uint16_t*>(mine16.data_ptr()), span.gradient = gradient16.data_ptr(),
  span.gradient_bf16 = true;
  step.clip = 0.5f;
  const Contest training = Race(
      rounds, [&] { UpdateAdamW(BestCpuForm(), step, span); },
      [&] {
        scratch.copy_(gradient16).mul_(0.5);
        fused(scratch);
        its16.copy_(its);
      });
  const auto rate = [n](double seconds) { return static_cast<double>(n) / seconds / 1e9; };
  std::printf(
      "{\"plain\": {\"ours\": %.4f, \"atens\": %.4f}, \"training\": {\"ours\": %.4f, \"atens\": "
      "%.4f}, \"unit\": \"Gparam/s on one core\", \"form\": \"%s\"}\n",
      rate(plain.ours_s), rate(plain.atens_s), rate(training.ours_s), rate(training.atens_s),
      BestCpuForm() == CpuForm::kAvx512 ? "avx512"
      : BestCpuForm() == CpuForm::kAvx2 ? "avx2"
                                        : "plain");
  return 0;
}

}  // namespace
}  // namespace muster::trainer

int main(int argc, char** argv) { return muster::trainer::Main(argc, argv); }
