#include "trainer/loop/export.h"

#include <cstdio>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>

#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/hugging_face.h"
#include "trainer/checkpoint/objects.h"
#include "trainer/loop/exchange.h"
#include "trainer/model/family.h"
#include "trainer/model/lora.h"

namespace muster::trainer {
namespace {

// The adapters without slices, on the host.
Flats WholeAdapters(const Setup& setup, const Engine& engine, World& alone) {
  Flats flats;
  for (FlatLayout& layout : MakeLoraLayout(setup.model, setup.config.lora).flats) {
    flats.push_back(std::make_unique<FlatParam>(
        std::move(layout), &alone,
        FlatOptions{.dtype = setup.config.dtype == "bf16" ? at::kBFloat16 : at::kFloat,
                    .frozen = true}));
    const std::vector<Segment>& segments = flats.back()->layout().segments();
    for (size_t s = 0; s < segments.size(); ++s)
      flats.back()->Weight(static_cast<int>(s)).copy_(engine.WholeWeight(segments[s].name));
  }
  return flats;
}

void TellExported(const std::string& target, bool replaces) {
  std::printf("exported to %s%s\n", target.c_str(),
              replaces ? ", in place of the export that was there" : "");
  std::fflush(stdout);
}

// On rank 0, once all weights are there.
int WriteExport(const Setup& setup, at::Device device, Engine& engine, Progress& progress) {
  at::NoGradGuard no_grad;
  if (device.is_cuda()) c10::cuda::set_device(device.index());
  const bool managed = !setup.surroundings.export_staging.empty();
  const std::string staged =
      managed ? setup.surroundings.export_staging + "/export" : setup.export_target + ".staging";
  const std::string unfinished = staged + ".unfinished";
  const std::unique_ptr<World> alone = World::Connect({}, at::kCPU);
  const Flats whole_adapters =
      setup.config.lora.on() ? WholeAdapters(setup, engine, *alone) : Flats();
  const AdapterExport adapters{&whole_adapters, setup.config.lora, setup.init_directory};
  const ModelLayout whole = MakeLayout(setup.model);
  const ReadParameter read = [&](int flat, int segment, int64_t first, const at::Tensor& out) {
    const std::string& name = whole.flats[flat].segments()[segment].name;
    out.copy_(engine.WholeWeight(name).view(-1).narrow(0, first, out.numel()));
    return absl::OkStatus();
  };
  const ExportOptions options{.dtype = setup.config.dtype,
                              .tokenizer = setup.TokenizerDirectory(),
                              .source = setup.init_directory,
                              .adapters = setup.config.lora.on() ? &adapters : nullptr};
  const auto failed = [](const absl::Status& status) {
    std::fprintf(stderr, "export failed: %s\n", std::string(status.message()).c_str());
    return 1;
  };
  if (IsObject(setup.export_target)) {
    const absl::StatusOr<bool> replaced =
        PushExport(read, setup.model, options, setup.export_target);
    if (!replaced.ok()) return failed(replaced.status());
    TellExported(setup.export_target, *replaced);
    // Without `staged`: there is nothing to publish.
    progress.Send({{"export", {{"target", setup.export_target}}}}, Progress::kDurable);
    return 0;
  }
  const bool replaces = std::filesystem::exists(setup.export_target + "/config.json");
  absl::Status status = StageExport(read, setup.model, options, unfinished);
  if (status.ok()) status = ReplaceDirectory(unfinished, managed ? staged : setup.export_target);
  if (!status.ok()) return failed(status);
  if (managed)
    std::printf("export staged=%s target=%s\n", staged.c_str(), setup.export_target.c_str());
  else
    TellExported(setup.export_target, replaces);
  std::fflush(stdout);
  progress.Send(
      {{"export",
        {{"staged", managed ? staged : setup.export_target}, {"target", setup.export_target}}}},
      Progress::kDurable);
  return 0;
}

}  // namespace

int ExportModel(const Setup& setup, World& world, Engine& engine, Progress& progress) {
  const bool leads = world.rank() == 0;
  world.SetTimeout(kStartTimeout);  // NCCL's clocks run from where a rank asks: the others ask for
                                    // all at once, rank 0 copies the model meanwhile
  engine.UnshardAll();
  world.SetTimeout(setup.config.StepTimeout());
  // Rank 0 writes in a thread, so that the others need not wait for it in one long exchange. When
  // one of them has died nobody waits for the thread: it ends with the process.
  std::packaged_task<int()> task([&setup, &engine, &progress, device = world.device()] {
    return WriteExport(setup, device, engine, progress);
  });
  std::future<int> written = task.get_future();
  if (leads) std::thread(std::move(task)).detach();
  Await(
      world,
      [&](std::chrono::milliseconds moment) {
        return !leads || written.wait_for(moment) == std::future_status::ready;
      },
      nullptr);
  return leads ? written.get() : 0;
}

}  // namespace muster::trainer
