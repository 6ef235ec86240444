"""LoRA: equal to peft, merged and saved for it, and the same however it is run."""

import json
import shutil
import subprocess
from pathlib import Path

import torch
from harness import Gang, read_batches, relative
from parity import BATCH, LENGTH, make_init
from parity import config as full_config
from peft import PeftModel
from safetensors.torch import load_file
from test_schema import train
from transformers import AutoModelForCausalLM

LORA = {
    "rank": 4,
    "alpha": 12,
    "target_modules": ["q_proj", "v_proj", r"model\.layers\.1\.mlp\..*", "o_proj", "lm_head"],
}
STEPS = 12


def config(init: Path, tokens: Path, export: Path, **more) -> dict:
    return (
        full_config(init, tokens, STEPS, export)
        | {"lora": LORA, "learning_rate": 1e-3, "max_grad_norm": 0.1}
        | more
    )


def peft_loop(
    init: Path, adapter: Path, batches: list[tuple[int, ...]], weight_decay: float, max_norm: float
):
    """(model, losses, grad norms) of training `adapter`, its B set to zero, beside the frozen model."""
    torch.set_num_threads(1)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32), adapter, is_trainable=True
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=weight_decay)
    losses, norms = [], []
    for batch in batches:
        ids = torch.tensor(batch).view(BATCH, LENGTH + 1)
        loss = torch.nn.functional.cross_entropy(
            model(input_ids=ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, max_norm).item())
        optimizer.step()
        losses.append(loss.item())
    return model, losses, norms


def export(trainer_bin, checkpoint, output, *more, check=True) -> subprocess.CompletedProcess:
    words = [trainer_bin, "export", "--checkpoint", checkpoint, "--output", output, *more]
    return subprocess.run(words, check=check, capture_output=True, text=True)


def test_lora_trains_as_peft_does_and_exports_for_it(trainer_bin, tokens, tmp_path):
    init = make_init(tmp_path / "init")
    # Too small a learning rate to move anything: the adapter as it begins.
    first = config(
        init, tokens, tmp_path / "begin", max_steps=1, learning_rate=1e-30, weight_decay=0
    )
    with Gang(trainer_bin, first, 1, tmp_path / "first") as gang:
        gang.finish()
    with Gang(
        trainer_bin,
        config(init, tokens, tmp_path / "model"),
        2,
        tmp_path / "run",
        dump_tokens=tmp_path / "run.tokens",
    ) as gang:
        gang.finish()
    batches = read_batches(tmp_path / "run.tokens", BATCH, LENGTH + 1)
    settings = config(init, tokens, tmp_path)
    model, losses, norms = peft_loop(
        init,
        tmp_path / "begin" / "adapter",
        batches,
        settings["weight_decay"],
        settings["max_grad_norm"],
    )
    loss, norm = gang.metric("loss"), gang.metric("grad_norm")
    assert max(relative(loss[step + 1], losses[step]) for step in range(STEPS)) <= 1e-5
    assert max(relative(norm[step + 1], norms[step]) for step in range(STEPS)) <= 1e-4
    assert max(norms) > settings["max_grad_norm"] and losses[0] - losses[-1] > 1e-3, (
        "clipped, and something was learnt"
    )

    ids = torch.tensor(batches[-1]).view(BATCH, LENGTH + 1)
    base = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        untrained = base(input_ids=ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)(
            input_ids=ids
        ).logits
        adapted = PeftModel.from_pretrained(base, tmp_path / "model" / "adapter")(
            input_ids=ids
        ).logits
    assert (untrained - wanted).abs().max() > 1e-2
    assert (merged - adapted).abs().max() <= 1e-5, "merged weights and adapter are the same model"
    assert (adapted - wanted).abs().max() <= 1e-4
    saved = json.loads((tmp_path / "model" / "adapter" / "adapter_config.json").read_text())
    assert len(saved["target_modules"]) == 2 * 3 + 3 + 1 and (saved["r"], saved["lora_alpha"]) == (
        4,
        12,
    )


def test_a_zero_adapter_changes_nothing_and_the_base_stays(trainer_bin, tokens, tmp_path):
    init = make_init(tmp_path / "init")
    runs = {}
    for name, more in (("lora", {}), ("full", {"lora": None})):
        settings = {
            key: value
            for key, value in config(
                init, tokens, tmp_path / f"model-{name}", max_steps=2, **more
            ).items()
            if value is not None
        }
        with Gang(trainer_bin, settings, 1, tmp_path / name) as gang:
            gang.finish()
        runs[name] = gang.metric("loss")
    assert runs["lora"][1] == runs["full"][1], "bitwise"
    assert runs["lora"][2] != runs["full"][2]
    before, after = (
        load_file(init / "model.safetensors"),
        load_file(tmp_path / "model-lora" / "model.safetensors"),
    )
    adapted = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(adapted) == 10 and all(
        "proj" in name or name == "lm_head.weight" for name in adapted
    )


def test_dropout_and_resume_depend_on_neither_ranks_nor_micro_batches(
    trainer_bin, tokens, tmp_path
):
    init = make_init(tmp_path / "init")
    lora = LORA | {"dropout": 0.3}
    # Named relative to the run's directory, which is not where it is exported from.
    with Gang(
        trainer_bin,
        config(
            Path("../init"), tokens, tmp_path / "m1", lora=lora, save_steps=6, deterministic=True
        ),
        1,
        tmp_path / "one",
    ) as one:
        one.finish()
    with Gang(
        trainer_bin,
        config(
            init, tokens, tmp_path / "m2", lora=lora, micro_batch_size=2, zero_stage=3, poison=True
        ),
        2,
        tmp_path / "two",
    ) as two:
        two.finish()
    with Gang(
        trainer_bin, config(init, tokens, tmp_path / "m3", lora=LORA), 1, tmp_path / "none"
    ) as none:
        none.finish()
    with Gang(
        trainer_bin,
        config(init, tokens, tmp_path / "m4", lora=lora, deterministic=True),
        1,
        tmp_path / "again",
        resume_from=[one.checkpoint(6)],
    ) as again:
        again.finish()
    losses = one.metric("loss")
    assert max(relative(two.metric("loss")[step], losses[step]) for step in losses) <= 1e-6
    assert max(relative(none.metric("loss")[step], losses[step]) for step in losses) > 1e-6, (
        "something was dropped"
    )
    assert again.metric("loss") == {step: loss for step, loss in losses.items() if step > 6}
    # A checkpoint has the adapters alone; export finds the rest.
    export(trainer_bin, one.checkpoint(STEPS), tmp_path / "exported")
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "exported" / name).read_bytes() == (tmp_path / "m1" / name).read_bytes()
    init.rename(tmp_path / "moved")
    lost = export(trainer_bin, one.checkpoint(STEPS), tmp_path / "lost", check=False)
    assert lost.returncode == 2 and "--init" in lost.stderr and "adapters alone" in lost.stderr
    export(trainer_bin, one.checkpoint(STEPS), tmp_path / "found", "--init", tmp_path / "moved")


def test_no_export_replaces_the_weights_that_all_weights_began_with(trainer_bin, tokens, tmp_path):
    above = tmp_path / "above"
    above.mkdir()
    (above / "config.json").write_text("{}")  # as an earlier export has it
    init = make_init(above / "init")
    weights = (init / "model.safetensors").read_bytes()
    for target in (init, init / "new", above):
        done = train(trainer_bin, tmp_path, full_config(init, tokens, STEPS, target))
        assert done.returncode == 2, done.stderr
        assert f"trainer.export: {target} is the directory of init" in done.stderr
    assert (init / "model.safetensors").read_bytes() == weights


def test_no_export_removes_what_the_job_reads_or_writes(trainer_bin, tokens, tmp_path):
    init, above, job = make_init(tmp_path / "init"), tmp_path / "above", tmp_path / "job"
    beside = [tmp_path / name for name in ("model.staging.unfinished", "model.replaced")]
    for folder in (above, *beside):
        shutil.copytree(tokens, folder / "tokens")
    job.mkdir()
    for folder in (above, job):
        (folder / "config.json").write_text("{}")  # as an earlier export has it
    for target, data, goes, what, environment in (
        (above, above / "tokens", above, "the data", {}),
        *((tmp_path / "model", folder / "tokens", folder, "the data", {}) for folder in beside),
        *(
            (its, tokens, its, "the checkpoints", {"MUSTER_CHECKPOINT_DIR": f"{its}/saved"})
            for its in (above, tmp_path / "new")
        ),
        (job, tokens, job, "the job", {"MUSTER_JOB_DIR": str(job)}),
    ):
        config = full_config(init, data, STEPS, target)
        done = train(trainer_bin, tmp_path, config, **environment)
        assert done.returncode == 2, done.stderr
        assert f"trainer.export: {goes} is the directory of {what}, " in done.stderr
        assert (data / "index.json").exists()


def test_no_export_replaces_the_weights_that_adapters_stand_beside(trainer_bin, tokens, tmp_path):
    init = make_init(tmp_path / "init")
    weights = (init / "model.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(init)
    for target in (f"{init}/", tmp_path / "link"):
        done = train(trainer_bin, tmp_path, config(init, tokens, target))
        assert done.returncode == 2, done.stderr
        assert "trainer.export: " in done.stderr and "is the directory of init" in done.stderr
    settings = config(init, tokens, tmp_path / "model", max_steps=1, save_steps=1)
    with Gang(trainer_bin, settings, 1, tmp_path / "run") as gang:
        gang.finish()
    for target in (init, tmp_path / "link", init / "new"):
        done = export(trainer_bin, gang.checkpoint(1), target, check=False)
        assert done.returncode == 2, done.stderr
        assert f"--output: {target} holds the weights that the adapters" in done.stderr
    assert (init / "model.safetensors").read_bytes() == weights


def test_adapters_of_slices_are_those_of_one_rank(trainer_bin, tokens, tmp_path):
    """In slices of inputs and of outputs, and of the vocabulary; what is dropped is the same for all."""
    init = make_init(tmp_path / "init")
    lora = LORA | {"dropout": 0.3}
    settings = {"lora": lora, "save_steps": 6}
    sliced = settings | {"parallel": {"tp": 2}, "zero_stage": 3, "poison": True}
    piped = settings | {"parallel": {"pp": 2, "pipeline": "zero_bubble"}}
    runs = {}
    for name, ranks, more, resume_from in (
        ("one", 1, settings, []),
        ("sliced", 4, sliced, []),
        ("again", 1, settings, ["sliced"]),
        ("piped", 2, piped, ["sliced"]),
    ):
        with Gang(
            trainer_bin,
            config(init, tokens, tmp_path / f"model-{name}", **more),
            ranks,
            tmp_path / name,
            resume_from=[runs[earlier].checkpoint(6) for earlier in resume_from],
        ) as gang:
            gang.finish()
        runs[name] = gang
    for key, bar in (("loss", 2e-6), ("grad_norm", 2e-5)):
        wanted = runs["one"].metric(key)
        for name in ("sliced", "again", "piped"):
            found = runs[name].metric(key)
            assert max(found) == STEPS
            assert max(relative(found[step], wanted[step]) for step in found) <= bar, (name, key)
    export(trainer_bin, runs["sliced"].checkpoint(STEPS), tmp_path / "exported")
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        of_run = (tmp_path / "model-sliced" / name).read_bytes()
        assert (tmp_path / "exported" / name).read_bytes() == of_run
        wanted, found = (load_file(tmp_path / f"model-{run}" / name) for run in ("one", "sliced"))
        assert set(found) == set(wanted)
        for key in wanted:
            assert torch.allclose(found[key], wanted[key], rtol=1e-3, atol=1e-5), key


def test_convert_merges_what_was_trained_whatever_it_writes(trainer_bin, tokens, tmp_path):
    init = make_init(tmp_path / "init")
    for trained, other in (("bf16", "fp32"), ("fp32", "bf16")):
        folder = tmp_path / trained
        with Gang(
            trainer_bin,
            config(init, tokens, folder / "model", dtype=trained, max_steps=3, save_steps=3),
            1,
            folder / "run",
        ) as gang:
            gang.finish()
        for dtype in (trained, other):
            subprocess.run(
                [
                    trainer_bin,
                    "convert",
                    "--input",
                    gang.checkpoint(3),
                    "--output",
                    folder / dtype,
                    "--dtype",
                    dtype,
                ],
                check=True,
                capture_output=True,
            )
        found = {
            dtype: load_file(folder / dtype / "model.safetensors") for dtype in (trained, other)
        }
        for name, tensor in found["fp32"].items():
            assert torch.equal(tensor.to(torch.bfloat16), found["bf16"][name]), (trained, name)


def test_bad_adapters_are_refused(trainer_bin, tokens, tmp_path):
    init = make_init(tmp_path / "init")
    for lora, wanted in (
        ({"rank": 4, "target_modules": ["norm"]}, "norm means no linear"),
        ({"r": 4}, "trainer.lora.r: use rank"),
    ):
        done = train(trainer_bin, tmp_path, config(init, tokens, tmp_path / "model", lora=lora))
        assert done.returncode == 2 and wanted in done.stderr, done.stderr
