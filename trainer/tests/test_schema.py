"""The schema that `trainer:` is checked against, and what the trainer itself refuses."""

import hashlib
import json
import subprocess

import options_table
import pytest
import resume
from harness import clean_environment

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}
CONTRACT_KEYS = {
    "init",
    "model",
    "data",
    "max_length",
    "global_batch_size",
    "micro_batch_size",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "min_lr_ratio",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "seed",
    "zero_stage",
    "dtype",
    "export",
    "deterministic",
    "log_interval",
    "save_steps",
    "threads",
    "shard_size",
    "parallel",
    "matmul",
    "reward",
    "router_bias_speed",
    "memory_per_rank",
    "masters",
    "moments",
    "gradient_dtype",
    "recompute",
    "offload",
    "z_loss",
    "router_aux_loss",
    "router_aux_loss_coef",
    "decay_steps",
    "decay_type",
    "spike_factor",
    "skip_limit",
    "poison",
    "profile_steps",
    "peak_tflops",
    "reference_ops",
    "mixture",
    "packing",
    "document_mask",
    "max_row_length",
    "eval_interval",
    "eval_sequences",
    "eval_data",
    "lora",
    "quantize",
    "save_in_background",
    "warm_restart",
    "step_timeout_s",
    "checkpoints",
    "cuda_graphs",
    "dpo",
}


@pytest.fixture(scope="module")
def schema_text(trainer_bin) -> str:
    return subprocess.run(
        [trainer_bin, "--schema"], check=True, capture_output=True, text=True
    ).stdout


def test_schema_is_a_json_schema_whose_defaults_obey_it(schema_text):
    schema = json.loads(schema_text)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert set(schema["properties"]) == CONTRACT_KEYS
    assert set(schema["required"]) <= CONTRACT_KEYS
    for name, key in schema["properties"].items():
        assert set(key) <= {
            "type",
            "description",
            "default",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "enum",
            "pattern",
            "minLength",
            "items",
            "properties",
            "required",
            "additionalProperties",
            "x-muster-hints",
        }, name
        assert key["description"].endswith("."), name
        if "default" in key:
            default = key["default"]
            kinds = key["type"] if isinstance(key["type"], list) else [key["type"]]
            assert any(isinstance(default, TYPES[kind]) for kind in kinds), name
            assert default in key.get("enum", [default]), name
            assert key.get("minimum", default) <= default <= key.get("maximum", default), name
    model = schema["properties"]["model"]
    assert model["additionalProperties"] is False and set(model["required"]) <= set(
        model["properties"]
    ) >= set(resume.TINY_MODEL)
    assert all(key["description"].endswith(".") for key in model["properties"].values())
    assert not set(schema["x-muster-hints"]) & CONTRACT_KEYS
    assert "global_batch_size" in schema["x-muster-hints"]["per_device_train_batch_size"]


def test_schema_hash_is_the_schemas_sha256(trainer_bin, schema_text):
    told = subprocess.run(
        [trainer_bin, "--schema-hash"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert told in [
        hashlib.sha256(text.encode()).hexdigest()
        for text in (schema_text, schema_text.rstrip("\n"))
    ]


def test_the_table_of_all_fields_in_the_docs_is_that_of_the_schema(schema_text):
    page = options_table.PAGE.read_text()
    assert options_table.page_with(page, json.loads(schema_text)) == page, (
        "run trainer/tests/options_table.py"
    )


@pytest.mark.parametrize("command", ["train", "estimate", "export", "convert"])
def test_each_command_explains_itself(command, trainer_bin):
    for arguments in (["--help"], ["-h"], ["--output", "x", "--help"]):
        done = subprocess.run([trainer_bin, command, *arguments], capture_output=True, text=True)
        assert (
            done.returncode == 0
            and done.stdout.startswith(f"usage: muster-trainer {command} --")
            and not done.stderr
        )
    wrong = subprocess.run([trainer_bin, command, "--nope", "1"], capture_output=True, text=True)
    assert (
        wrong.returncode == 2
        and "no such argument: --nope" in wrong.stderr
        and f"muster-trainer {command} --help" in wrong.stderr
    )


@pytest.mark.parametrize(
    "words,wanted",
    [
        (["estimat"], "no such command: estimat. Did you mean estimate?"),
        (["perpare"], "no such command: perpare. Did you mean prepare?"),
        (["estimate", "--rank", "2"], "no such argument: --rank. Did you mean --ranks?"),
        (["convert", "--quantise=nf4"], "no such argument: --quantise. Did you mean --quantize?"),
    ],
)
def test_a_misspelt_word_is_told_the_nearest(words, wanted, trainer_bin):
    done = subprocess.run([trainer_bin, *words], capture_output=True, text=True)
    assert done.returncode == 2 and wanted in done.stderr, done.stderr


def test_metrics_that_cant_be_written_are_refused(trainer_bin, tmp_path):
    (tmp_path / "trainer.json").write_text("{}")
    done = subprocess.run(
        [
            trainer_bin,
            "train",
            "--config",
            tmp_path / "trainer.json",
            "--metrics",
            tmp_path / "none" / "m",
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 2
        and f"--metrics: {tmp_path}/none/m can't be written: No such file or directory; name a file"
        in done.stderr
    )


def train(trainer_bin, tmp_path, config, **environment: str) -> subprocess.CompletedProcess:
    (tmp_path / "trainer.json").write_text(
        config if isinstance(config, str) else json.dumps(config)
    )
    return subprocess.run(
        [trainer_bin, "train", "--config", tmp_path / "trainer.json"],
        env=clean_environment(**environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )


REFUSED = {  # name: (changes to a good configuration, what the message must hold)
    "hinted key": (
        {"per_device_train_batch_size": 4},
        ["per_device_train_batch_size", "global_batch_size"],
    ),
    "misspelt key": ({"learning_rat": 1e-4}, ["learning_rat", "Did you mean learning_rate?"]),
    "wrong type": ({"max_steps": "many"}, ["max_steps", "many"]),
    "below the minimum": ({"max_steps": 0}, ["max_steps", "1"]),
    "not of the enum": ({"dtype": "fp16"}, ["dtype", "bf16"]),
    "several at once": ({"dtype": "fp16", "learning_rat": 1}, ["dtype", "learning_rat"]),
    "init and model": ({"init": "/nowhere"}, ["init", "model"]),
    "no such data": ({"data": "/nowhere"}, ["/nowhere"]),
    "data at a URL": (
        {"data": "s3://acme/tokens"},
        [
            "trainer.data: s3://acme/tokens: a directory is wanted",
            "fetch it to one that all hosts of the job have",
        ],
    ),
    "init at a URL": (
        {"init": "s3://acme/model"},
        ["trainer.init: s3://acme/model: a directory is wanted"],
    ),
    "checkpoints at a directory": ({"checkpoints": "/"}, ["trainer.checkpoints: must be s3://"]),
    "export to a URL": (
        {"export": "gs://acme/model"},
        ["trainer.export: must be s3://BUCKET/PREFIX; got gs://acme/model. Or give a directory"],
    ),
    "data and mixture": (
        {"mixture": [{"data": "/nowhere", "weight": 1}]},
        ["data and mixture exclude each other"],
    ),
    "too long": (
        {"max_length": 4096},
        [
            "4096 is above the model's max_position_embeddings, 128; use at most that, or raise it in trainer.model"
        ],
    ),
    "shards for one rank": (
        {"shard_size": 4},
        ["shard_size: needs 4 ranks, or a multiple of them, and this run has one; leave it out"],
    ),
    "no such part": (
        {"packing": "bfd", "mixture": [{"data": "/nowhere", "weight": -1}]},
        ["mixture[0].weight", "above 0"],
    ),
    "heads don't divide": (
        {"model": resume.TINY_MODEL | {"num_key_value_heads": 3}},
        ["num_key_value_heads"],
    ),
    "small vocabulary": (
        {
            "model": resume.TINY_MODEL
            | {"vocab_size": 100, "bos_token_id": None, "eos_token_id": None}
        },
        ["vocab_size", "259"],
    ),
    "other architecture": (
        {"model": resume.TINY_MODEL | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}},
        ["gpt2"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_configuration_is_refused_with_what_would_be_right(case, trainer_bin, tokens, tmp_path):
    changes, wanted = REFUSED[case]
    done = train(trainer_bin, tmp_path, resume.config(tokens, save_steps=0) | changes)
    assert done.returncode == 2, done.stderr
    assert not [word for word in wanted if word.lower() not in done.stderr.lower()], done.stderr
    assert "step=" not in done.stdout


@pytest.mark.parametrize("key", ["init", "data", "export"])
def test_places_that_cant_be_looked_at_are_refused(key, trainer_bin, tokens, tmp_path):
    (tmp_path / "loop").symlink_to("loop")  # as a folder that this user may not enter
    settings = resume.config(tokens, save_steps=0, eval_interval=1)
    settings |= {key: str(tmp_path / "loop" / "it")}
    if key == "init":
        del settings["model"]
    done = train(trainer_bin, tmp_path, settings)
    assert done.returncode == 2, done.stderr
    assert f"trainer.{key}: {tmp_path}/loop/it " in done.stderr, done.stderr
    assert "Too many levels of symbolic links" in done.stderr and "step=" not in done.stdout


@pytest.mark.parametrize("steps", ["0", "1001", "many"])
def test_a_profile_of_no_steps_or_of_too_many_is_refused(steps, trainer_bin, tmp_path):
    (tmp_path / "trainer.json").write_text("{}")
    done = subprocess.run(
        [trainer_bin, "train", "--config", tmp_path / "trainer.json", "--profile", steps],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert f"--profile: must be a number of steps, 1 to 1000; got {steps}" in done.stderr


def test_a_place_for_checkpoints_that_cant_be_listed_is_refused(trainer_bin, tokens, tmp_path):
    (tmp_path / "file").touch()
    done = train(
        trainer_bin, tmp_path, resume.config(tokens), MUSTER_CHECKPOINT_DIR=str(tmp_path / "file")
    )
    assert done.returncode == 2, done.stderr
    wanted = f"MUSTER_CHECKPOINT_DIR: {tmp_path}/file can't be listed: Not a directory"
    assert wanted in done.stderr and "step=" not in done.stdout, done.stderr


def test_broken_json_is_refused_with_its_line_and_column(trainer_bin, tmp_path):
    done = train(trainer_bin, tmp_path, '{"data": ')
    assert done.returncode == 2 and "trainer.json:1:10: not JSON" in done.stderr
    done = train(trainer_bin, tmp_path, '{"data": "x",\n  "max_steps" 3}')
    assert done.returncode == 2 and "trainer.json:2:15: not JSON" in done.stderr, done.stderr
    done = subprocess.run(
        [trainer_bin, "estimate", "--config", tmp_path / "trainer.json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "trainer.json:2:15: not JSON" in done.stderr, done.stderr
