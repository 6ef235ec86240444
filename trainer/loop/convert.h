// `muster-trainer convert` and `muster-trainer export`: between checkpoints and Hugging Face
// directories, and from those to quantised ones, in little memory, whatever the size of the model.
#pragma once

#include <string>

namespace muster::trainer {

struct ConvertOptions {
  const char* flag = "--input";  // that `input` was given with
  std::string input;             // a checkpoint, or a Hugging Face directory
  std::string output;            // becomes the other
  std::string dtype;  // of the Hugging Face directory's weights: fp32, bf16, fp16; empty: what the
                      // checkpoint's are
  std::string tokenizer;  // directory whose files go into the Hugging Face directory; empty: that
                          // of the checkpoint, if it is still there
  std::string init;       // of a LoRA run: where its frozen weights are now; empty: where they were
  // nf4: of a Hugging Face directory comes another one, whose linears are in 4 bits; and whether
  // their scales are quantised, too: true (also where it is empty) or false.
  std::string quantize, quantize_double;
};

// A checkpoint becomes a Hugging Face directory: exit codes as Train's.
int Export(const ConvertOptions& options);

// Either way, by what the input is. From a Hugging Face directory comes a checkpoint of step 0 that
// training can resume from, or with `quantize` a quantised one.
int Convert(const ConvertOptions& options);

}  // namespace muster::trainer
