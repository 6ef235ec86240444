"""What the trainer makes of token shards: masks, packing, mixtures, evaluation, and ids that can't be."""

import struct

import finetune
import resume
from finetune import make_pairs, settings
from harness import TINY_MODEL, Gang, read_batches, relative
from parity import make_init
from test_prepare import read_masked
from test_schema import train


def test_packed_documents_train_as_they_would_apart_and_as_in_transformers(trainer_bin, tmp_path):
    found = finetune.compare_packing(trainer_bin, tmp_path)
    assert found["rows"] < found["documents"] * 0.6
    for name in ("loss", "grad_norm", "loss_transformers", "grad_norm_transformers"):
        assert found[name] <= 1e-5, found


def test_balanced_rows_give_the_same_on_one_rank_and_on_three(trainer_bin, tmp_path):
    tokens, init = make_pairs(tmp_path / "pairs"), make_init(tmp_path / "init")
    losses = []
    for ranks in (1, 3):
        config = settings(
            init,
            tokens,
            4,
            packing="balanced",
            max_row_length=96,
            max_steps=12,
            learning_rate=1e-4,
            micro_batch_size=2,
        )
        with Gang(
            trainer_bin,
            config,
            ranks,
            tmp_path / str(ranks),
            dump_tokens=tmp_path / f"{ranks}.tokens",
        ) as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
    assert (tmp_path / "1.tokens").read_bytes() == (tmp_path / "3.tokens").read_bytes()
    assert max(relative(losses[1][step], losses[0][step]) for step in range(1, 13)) <= 1e-6
    lengths = {
        sum(token >= 0 for token in batch[row * 97 : row * 97 + 97])
        for batch in read_batches(tmp_path / "1.tokens", 4, 97)
        for row in range(4)
    }
    assert len(lengths) > 3 and max(lengths) > finetune.LENGTH + 1


def test_a_packed_run_resumes_bit_for_bit(trainer_bin, tmp_path):
    tokens, init = make_pairs(tmp_path / "pairs"), make_init(tmp_path / "init")
    config = settings(
        init,
        tokens,
        3,
        packing="bfd",
        max_steps=8,
        save_steps=5,
        deterministic=True,
        micro_batch_size=1,
    )
    with Gang(trainer_bin, config, 2, tmp_path / "whole") as whole:
        whole.finish()
    with Gang(
        trainer_bin, config, 2, tmp_path / "again", resume_from=[whole.checkpoint(5)]
    ) as again:
        again.finish()
    assert again.metric("loss") == {step: whole.metric("loss")[step] for step in (6, 7, 8)}
    with Gang(
        trainer_bin,
        config | {"packing": "none"},
        1,
        tmp_path / "other",
        resume_from=[whole.checkpoint(5)],
    ) as other:
        other.finish()
    assert (
        'packing: "bfd" -> "none"' in other.stderr()
        and "the rows that steps take are others" in other.stderr()
    )


def test_evaluation_is_the_validation_splits_loss(trainer_bin, tmp_path):
    tokens, init = (
        make_pairs(tmp_path / "pairs", 120, "--validation-share", 0.2),
        make_init(tmp_path / "init"),
    )
    documents = read_masked(tokens / "validation")
    assert 10 < len(documents) < 40
    losses = []
    for ranks in (1, 2):
        config = settings(
            init,
            tokens,
            4,
            packing="bfd",
            max_steps=5,
            eval_interval=2,
            export=str(tmp_path / f"model{ranks}"),
        )
        with Gang(trainer_bin, config, ranks, tmp_path / str(ranks)) as gang:
            gang.finish()
        told = {
            int(line["step"]): float(line["eval_loss"])
            for line in gang.lines
            if "eval_loss" in line
        }
        assert list(told) == [2, 4, 5], "every other step, and the last"
        assert [event["eval_loss"] for event in gang.events if "eval_loss" in event] == list(
            told.values()
        )
        losses.append(told)
    assert max(relative(losses[1][step], losses[0][step]) for step in losses[0]) <= 1e-6
    wanted, _ = finetune.transformers_loss(tmp_path / "model1", documents)
    assert relative(losses[0][5], wanted) <= 1e-5
    # eval_data names another; eval_sequences takes some of it.
    config = settings(
        init,
        tokens,
        4,
        max_steps=1,
        eval_interval=1,
        eval_data=str(tokens),
        eval_sequences=3,
        packing="bfd",
    )
    with Gang(trainer_bin, config, 1, tmp_path / "named") as gang:
        gang.finish()
    assert "eval_loss" in gang.lines[0]


def test_a_mixture_takes_its_shares_and_goes_on_after_a_resume(trainer_bin, tokens, tmp_path):
    pairs = make_pairs(tmp_path / "pairs")
    config = resume.config(tokens, max_steps=10, save_steps=5) | {
        "mixture": [{"data": str(tokens), "weight": 3}, {"data": str(pairs), "weight": 1}]
    }
    del config["data"]
    with Gang(
        trainer_bin, config, 2, tmp_path / "run", dump_tokens=tmp_path / "run.tokens"
    ) as gang:
        gang.finish()
    batches = read_batches(tmp_path / "run.tokens", 16, 65)
    digits = set(b"0123456789, andis") | {257}
    of_pairs = [
        sum(set(batch[row * 65 : row * 65 + 65]) <= digits for row in range(16))
        for batch in batches
    ]
    assert of_pairs == [4] * 10
    with Gang(
        trainer_bin,
        config,
        1,
        tmp_path / "again",
        resume_from=[gang.checkpoint(5)],
        dump_tokens=tmp_path / "again.tokens",
    ) as again:
        again.finish()
    assert read_batches(tmp_path / "again.tokens", 16, 65) == batches[5:]


def test_document_masks_change_what_a_wrapped_stream_learns(trainer_bin, tmp_path):
    tokens, init = make_pairs(tmp_path / "pairs"), make_init(tmp_path / "init")
    losses = []
    for mask in (False, True):
        with Gang(
            trainer_bin,
            settings(init, tokens, 8, document_mask=mask, max_steps=1),
            1,
            tmp_path / str(mask),
        ) as gang:
            gang.finish()
        losses.append(gang.metric("loss")[1])
    assert 1e-6 < relative(losses[1], losses[0]) < 0.05


def test_a_token_beyond_the_vocabulary_is_refused_with_its_place(trainer_bin, tmp_path):
    tokens = make_pairs(tmp_path / "pairs")
    with open(tokens / "00000.tokens", "r+b") as file:
        file.seek(2 * 77)
        file.write(struct.pack("<H", 300))
    config = settings(tmp_path, tokens, 30, packing="bfd") | {"model": TINY_MODEL}
    del config["init"]
    done = train(trainer_bin, tmp_path, config)
    assert (
        done.returncode == 1
        and "00000.tokens: token 77 " in done.stderr
        and "id 300, but vocab_size is 259" in done.stderr
    )


def test_a_shard_that_doesnt_match_its_checksum_ends_the_run(trainer_bin, tmp_path):
    tokens = make_pairs(tmp_path / "pairs")
    config = settings(tmp_path, tokens, 4, packing="bfd") | {"model": TINY_MODEL}
    del config["init"]
    for name in ("00000.mask", "00000.tokens"):
        good = (tokens / name).read_bytes()
        (tokens / name).write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
        done = train(trainer_bin, tmp_path, config)
        assert (
            done.returncode == 1
            and f"{name} doesn't match its sha256" in done.stderr
            and "copy it again" in done.stderr
        ), done.stderr
        (tokens / name).write_bytes(good)
    assert train(trainer_bin, tmp_path, config).returncode == 0


def test_evaluation_without_a_validation_split_is_refused(trainer_bin, tokens, tmp_path):
    done = train(trainer_bin, tmp_path, resume.config(tokens, save_steps=0, eval_interval=5))
    assert done.returncode == 2 and "--validation-share" in done.stderr


def test_shards_of_an_earlier_version_are_refused(trainer_bin, tmp_path):
    tokens = make_pairs(tmp_path / "pairs")
    (tokens / "index.json").write_text(
        (tokens / "index.json").read_text().replace("muster-tokens-2", "muster-tokens-1")
    )
    done = train(trainer_bin, tmp_path, resume.config(tokens, save_steps=0))
    assert (
        done.returncode == 2 and "muster-tokens-2" in done.stderr and "make it again" in done.stderr
    )
