#include "trainer/loop/engine_options.h"

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// transformers computes it only where a model puts out its routers' logits.
TEST(EngineOptions, ALossThatIsAskedForBalancesWhateverTheModelPutsOut) {
  struct Case {
    const char* wanted;
    bool puts_out;
    BalanceKind kind;
  };
  for (const Case& c : {Case{"sequence", false, BalanceKind::kSequence},
                        {"sequence", true, BalanceKind::kSequence},
                        {"batch", false, BalanceKind::kBatch},
                        {"batch", true, BalanceKind::kBatch},
                        {"auto", false, BalanceKind::kNone},
                        {"auto", true, BalanceKind::kSequence},
                        {"none", true, BalanceKind::kNone}}) {
    SCOPED_TRACE(c.wanted);
    ModelConfig model;
    model.experts.count = 4;
    model.experts.output_router_logits = c.puts_out;
    model.experts.aux_loss_coef = 0.25;
    TrainConfig config;
    config.router_aux_loss = c.wanted;
    EXPECT_EQ(BalanceOf(config, model).kind, c.kind);
    EXPECT_EQ(BalanceOf(config, model).coefficient, 0.25);
    config.router_aux_loss_coef = 0.5;
    EXPECT_EQ(MakeEngineOptions(config, model).balance.coefficient, 0.5);
  }
}

}  // namespace
}  // namespace muster::trainer
