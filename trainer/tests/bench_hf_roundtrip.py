"""bench/run.sh hf-roundtrip: Hugging Face directory -> checkpoint -> Hugging Face directory, each family in fp32, bf16 and fp16;
the export in transformers; a LoRA adapter in peft."""

import sys
import tempfile
from pathlib import Path

import families
import harness
import roundtrip
import torch
import transformers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    peer = f"transformers {transformers.__version__}"
    tensors = differ = models = 0
    logits, adapters = 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="bench-roundtrip-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        for number, family in enumerate(families.FAMILIES):
            for dtype in list(DTYPES)[number % 3 :][:1] if quick else DTYPES:
                found = roundtrip.roundtrip(
                    trainer_bin,
                    folder / f"{family}-{dtype}",
                    family,
                    DTYPES[dtype],
                    max_shard_size="100KB" if dtype == "bf16" else "50GB",
                )
                print(f"{family} {dtype}: {found}", flush=True)
                models, tensors, differ, logits = (
                    models + 1,
                    tensors + found["tensors"],
                    differ + found["tensors_differ"],
                    max(logits, found["logits"]),
                )
            if not quick or number % 3 == 0:
                found = roundtrip.adapter_logits(
                    trainer_bin, tokens, folder / f"{family}-lora", family
                )
                print(f"{family} LoRA: {found}", flush=True)
                assert found["moved"] > 1e-3, "the adapter learnt nothing"
                adapters = max(adapters, found["merged"])
    return harness.report(
        [
            harness.figure(
                f"tensors that aren't byte-identical, of {tensors} in {models} models",
                differ,
                "",
                0,
                peer=peer,
            ),
            harness.figure("logits of import -> export", logits, "absolute", 1e-5, peer=peer),
            harness.figure(
                "logits of the merged export against the adapter in peft",
                adapters,
                "absolute",
                1e-5,
                peer="peft",
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
