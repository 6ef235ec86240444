#!/usr/bin/env python3
"""Row `quantised`: weights and moments in few bits against bitsandbytes, and products in 8 bits, on a CPU.

    quantised.py [--quick]

NF4: what the trainer keeps of the linears of directories, plain ones and ones that bitsandbytes has saved, against what bitsandbytes makes
of the same weights: bytes, scales, nested scales, and the values of a layer, bit for bit; and what transformers loads from the directories that
`muster-trainer convert --quantize nf4` writes. Moments in 8 bits: 20 updates against AdamW8bit. QLoRA: 20
steps of a model of 4 layers against transformers, peft and bitsandbytes. Products in fp8: logits' loss and every gradient against quantising and
dequantising in Python (trainer/tests/fp8.py), and 20 steps beside bf16. bitsandbytes is bench/requirements-quantised.txt's, in an environment
that the row makes. --quick: fewer variants and steps.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "trainer" / "tests"))

import fp8
import layouts
import torch
from environments import environment, site_of
from figures import BIN, figure
from harness import TINY_MODEL, Gang, make_tokens, read_batches, relative
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

TRAINER = os.environ.get("MUSTER_TRAINER_BIN", str(BIN / "muster-trainer"))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Matrices of several units of 16,384 elements with a part of one at the end; and with a part of a block of 64.
MODELS = {
    "even": {"num_hidden_layers": 4, "hidden_size": 192, "intermediate_size": 520},
    "odd": {"hidden_size": 72, "intermediate_size": 35},
}
BATCH, LENGTH, RATE = 8, 64, 1e-3


def add_bitsandbytes() -> str:
    """Makes it importable; its version. Beside this environment's own torch, which it must not bring a second of."""
    place = environment(
        "quantised", "bench/requirements-quantised.txt", may_make=True, more=("--no-deps",)
    )
    sys.path.append(str(site_of(place)))
    import bitsandbytes

    return f"bitsandbytes {bitsandbytes.__version__}"


def make_init(folder: Path, sizes: dict) -> Path:
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**(TINY_MODEL | sizes))).save_pretrained(folder)
    return folder


def quantised_model(init: Path, double: bool, dtype: torch.dtype):
    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=dtype,
    )
    return AutoModelForCausalLM.from_pretrained(
        init, quantization_config=how, dtype=dtype, device_map="cpu"
    )


# ---- weights ----


def kept_by_the_trainer(directory: Path, double: bool, dtype: str, out: Path) -> dict:
    command = [BIN / "muster-bench-low-bits", "weights", directory, str(double).lower(), dtype, out]
    subprocess.run(command, check=True)
    return load_file(out)


def kept_by_bitsandbytes(model) -> dict:
    import bitsandbytes as bnb

    kept = {}
    for name, module in model.named_modules():
        if not isinstance(module, bnb.nn.Linear4bit):
            continue
        weight, state, name = module.weight, module.weight.quant_state, f"{name}.weight"
        kept[f"{name}.codes"] = weight.data.view(torch.uint8).flatten()
        kept[f"{name}.absmax"] = state.absmax
        if state.nested:
            kept[f"{name}.nested_absmax"] = state.state2.absmax
            kept[f"{name}.offset"] = state.offset.view(1)
        kept[f"{name}.values"] = bnb.functional.dequantize_4bit(weight.data, state).flatten()
    return kept


def loaded_by_bitsandbytes(init: Path, double: bool, dtype: str, folder: Path) -> dict:
    """Of a directory that the trainer quantises."""
    command = [TRAINER, "convert", "--input", init, "--output", folder, "--quantize", "nf4"]
    command += ["--double", str(double).lower(), "--dtype", dtype]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return kept_by_bitsandbytes(
        AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], device_map="cpu")
    )


def compare_weights(folder: Path, quick: bool, peer: str) -> bool:
    different, tensors, loaded_different, loaded_tensors = {}, 0, 0, 0
    for name, sizes in MODELS.items():
        init = make_init(folder / name, sizes)
        for double in (True,) if quick else (True, False):
            for dtype in ("bf16",) if quick else DTYPES:
                theirs = quantised_model(init, double, DTYPES[dtype])
                saved = folder / f"{name}-{double}-{dtype}"
                theirs.save_pretrained(saved)
                wanted = kept_by_bitsandbytes(theirs)
                for source in (init, saved):
                    found = kept_by_the_trainer(source, double, dtype, folder / "kept.safetensors")
                    assert found.keys() == wanted.keys(), sorted(found.keys() ^ wanted.keys())
                    tensors += len(wanted)
                    for tensor, value in wanted.items():
                        kind = tensor.rsplit(".", 1)[1]
                        off = torch.count_nonzero(found[tensor] != value).item()
                        assert found[tensor].dtype == value.dtype, tensor
                        different[kind] = different.get(kind, 0) + off
                written = folder / f"written-{name}-{double}-{dtype}"
                found = loaded_by_bitsandbytes(init, double, dtype, written)
                assert found.keys() == wanted.keys(), sorted(found.keys() ^ wanted.keys())
                loaded_tensors += len(wanted)
                for tensor, value in wanted.items():
                    assert found[tensor].dtype == value.dtype, tensor
                    loaded_different += torch.count_nonzero(found[tensor] != value).item()
    ok = True
    for kind, off in different.items():
        ok &= figure(f"NF4 {kind} that differ", off, f"of {tensors} tensors", 0, off == 0, peer)
    what, off = "NF4 directories we write, as transformers loads them: differ", loaded_different
    return ok & figure(what, off, f"numbers of {loaded_tensors} tensors", 0, off == 0, peer)


# ---- moments ----


def compare_moments(folder: Path, quick: bool, peer: str) -> bool:
    import bitsandbytes as bnb

    steps, decay = 5 if quick else 20, 0.01
    torch.manual_seed(3)
    # A matrix, one whose last block is short, and one that is too small for 8 bits.
    shapes = {"a": (300, 256), "b": (67, 131), "c": (60, 60)}
    params = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
    scale = {name: torch.rand(shape) ** 4 for name, shape in shapes.items()}
    tensors = {f"p.{name}": value for name, value in params.items()}
    theirs = {name: torch.nn.Parameter(value.clone()) for name, value in params.items()}
    optimizer = bnb.optim.AdamW8bit(theirs.values(), lr=RATE, weight_decay=decay)
    for step in range(1, steps + 1):
        for name, value in theirs.items():
            value.grad = tensors[f"g.{step}.{name}"] = torch.randn(shapes[name]) * scale[name]
        optimizer.step()
    save_file(tensors, folder / "moments.safetensors")
    command = [BIN / "muster-bench-low-bits", "adamw", folder / "moments.safetensors"]
    command += [str(steps), str(RATE), str(decay), folder / "trained.safetensors"]
    subprocess.run(command, check=True)
    found = load_file(folder / "trained.safetensors")
    off = max(
        ((found[name] - theirs[name]).norm() / (theirs[name] - params[name]).norm()).item()
        for name in shapes
    )
    coded = [state["state1"].dtype == torch.uint8 for state in optimizer.state.values()]
    assert coded == [True, True, False], coded
    return figure(
        "moments: int8, weights", off, f"of their change in {steps} steps", 1e-3, off <= 1e-3, peer
    )


# ---- QLoRA ----


def settings(init: Path, tokens: Path, export: Path, steps: int, double: bool, dtype: str, **more):
    return {
        "init": str(init),
        "data": str(tokens),
        "max_length": LENGTH,
        "global_batch_size": BATCH,
        "micro_batch_size": 4,
        "max_steps": steps,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.5,
        "dtype": dtype,
        "lora": {"rank": 4, "alpha": 12},
        "quantize": {"type": "nf4", "double": double},
        "export": str(export),
        "threads": 1,
    } | more


def peft_losses(init: Path, adapter: Path, batches, double: bool, dtype: str) -> list[float]:
    torch.set_num_threads(1)
    base = quantised_model(init, double, DTYPES[dtype])
    model = PeftModel.from_pretrained(
        base, adapter, is_trainable=True, autocast_adapter_dtype=False
    )
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in trained]
    optimizer = torch.optim.AdamW(masters, lr=RATE, weight_decay=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    for master, parameter in zip(masters, trained):
        master.data.copy_(parameter)
    losses = []
    for batch in batches:
        ids = torch.tensor(batch).view(BATCH, LENGTH + 1)
        logits = model(input_ids=ids[:, :-1]).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for master, parameter in zip(masters, trained):
            master.grad = parameter.grad.float()
        torch.nn.utils.clip_grad_norm_(masters, 0.5)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, trained):
                parameter.copy_(master)
        losses.append(loss.item())
    return losses


def compare_qlora(folder: Path, quick: bool, peer: str) -> bool:
    steps, ok = 5 if quick else 20, True
    tokens = make_tokens(folder / "tokens")
    init = make_init(folder / "qlora", MODELS["even"])
    for double, dtype, ranks in (
        ((True, "fp32", 2),)
        if quick
        else ((True, "fp32", 2), (False, "fp32", 1), (True, "bf16", 1))
    ):
        run = folder / f"run-{double}-{dtype}"
        source = folder / f"source-{double}-{dtype}"
        quantised_model(init, double, DTYPES[dtype]).save_pretrained(source)
        words = (tokens, run / "begin", 1, double, dtype)
        with Gang(TRAINER, settings(init, *words, learning_rate=1e-30), 1, run / "first") as gang:
            gang.finish()
        losses = {}
        # On several ranks they share out the bytes.
        for name, directory in (("plain", init), ("saved", source)):
            config = settings(
                directory, tokens, run / f"model-{name}", steps, double, dtype, zero_stage=3
            )
            dump = run / f"{name}.tokens"
            with Gang(TRAINER, config, ranks, run / name, dump_tokens=dump) as gang:
                gang.finish()
            losses[name] = [gang.metric("loss")[step + 1] for step in range(steps)]
        batches = read_batches(run / "plain.tokens", BATCH, LENGTH + 1)
        theirs = peft_losses(init, run / "begin" / "adapter", batches, double, dtype)
        assert theirs[0] - theirs[-1] > 0.01, "nothing was learnt"
        for name, ours in losses.items():
            off = max(relative(one, other) for one, other in zip(ours, theirs, strict=True))
            what = f"QLoRA, {'double, ' * double}{dtype}, {ranks} ranks, {name} weights: loss"
            ok &= figure(what, off, f"relative, {steps} steps", 1e-3, off <= 1e-3, peer)
    return ok


# ---- products in 8 bits ----


def fp8_settings(init: Path, tokens: Path, steps: int, **more) -> dict:
    said = settings(init, tokens, Path("none"), steps, True, "fp32", matmul="fp8") | more
    return {name: its for name, its in said.items() if name not in ("lora", "quantize", "export")}


def run_fp8(folder: Path, config: dict, ranks: int) -> Gang:
    with Gang(TRAINER, config, ranks, folder, dump_tokens=folder.with_suffix(".tokens")) as gang:
        gang.finish()
    return gang


def fp8_reference(init: Path, batch) -> tuple[float, dict]:
    """The loss and the gradients."""
    torch.set_num_threads(1)
    model = fp8.in_fp8(AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32))
    ids = torch.tensor(batch).view(BATCH, LENGTH + 1)
    logits = model(input_ids=ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.item(), {name: its.grad for name, its in model.named_parameters()}


def compare_fp8(folder: Path, quick: bool) -> bool:
    peer, ok = "quantising and dequantising in Python", True
    tokens = make_tokens(folder / "fp8-tokens")
    init = make_init(folder / "fp8", {"num_hidden_layers": 4})
    # Where a value lies between two of e5m2, the last bit of fp32 decides which it becomes, and so all before it: of four layers the reference's
    # gradients with weights one unit in the last place away are 10 % from its own, and say nothing of whose sums are right.
    shallow = make_init(folder / "fp8-shallow", {"num_hidden_layers": 2})
    whole = {"max_grad_norm": 0, "micro_batch_size": BATCH}
    for name, (ranks, more) in {
        "one rank": (1, {}),
        "tp 2": (2, {"parallel": {"tp": 2}}),
        "cp 2": (2, {"parallel": {"cp": 2}}),
    }.items():
        place = folder / f"fp8-{name.replace(' ', '-')}"
        gang = run_fp8(place, fp8_settings(shallow, tokens, 1, **(whole | more)), ranks)
        (batch,) = read_batches(place.with_suffix(".tokens"), BATCH, LENGTH + 1)
        loss, gradients = fp8_reference(shallow, batch)
        found = layouts.read_tensors(gang.checkpoint(1), "exp_avg")
        off = max(
            ((found[key] / 0.1 - its).norm() / its.norm()).item() for key, its in gradients.items()
        )
        apart = relative(gang.metric("loss")[1], loss)
        ok &= figure(f"fp8, {name}: loss", apart, "relative", 1e-2, apart <= 1e-2, peer)
        what = f"fp8, {name}: the farthest of {len(gradients)} gradients"
        ok &= figure(what, off, "of its length", 1e-2, off <= 1e-2, peer)
    steps, losses = 5 if quick else 20, {}
    for kind in ("fp8", "dtype"):
        config = fp8_settings(init, tokens, steps, dtype="bf16", matmul=kind)
        losses[kind] = run_fp8(folder / f"fp8-train-{kind}", config, 2).metric("loss")
    learnt = losses["dtype"][1] - losses["dtype"][steps]
    assert learnt > 0.3, "nothing was learnt"
    off = max(relative(its, losses["dtype"][step]) for step, its in losses["fp8"].items())
    what = f"fp8 in bf16: loss, which falls by {learnt:.2f}"
    return ok & figure(what, off, f"relative, {steps} steps", 1e-2, off <= 1e-2, "our bf16")


def main() -> int:
    quick = "--quick" in sys.argv
    peer = add_bitsandbytes()
    with tempfile.TemporaryDirectory(prefix="quantised-") as name:
        folder = Path(name)
        ok = compare_weights(folder, quick, peer)
        ok &= compare_moments(folder, quick, peer)
        ok &= compare_qlora(folder, quick, peer)
        ok &= compare_fp8(folder, quick)
    print(json.dumps({"peer": peer}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
