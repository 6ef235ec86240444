"""muster_score's vllm engine beside bare LLM.generate, and Ray Data LLM with the same engine. Run by bench/score.py and python/tests/test_score_vllm.py with
the pythons of bench/vllm_environment.py.

    score_vllm.py tokens|speed|ray FOLDER ROWS [TURNS]

FOLDER has in.jsonl and model/ once `tokens` or `speed` has run. The last line that begins with { is a JSON object.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python" / "tests")]

MAX_TOKENS, BATCH = 64, 256
# In 32 bits: in 16 two words are often as likely as each other, and which is taken hangs on the rows beside.
ENGINE = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": BATCH}


def prompts_of(rows: int) -> list[str]:
    dice = random.Random(2)
    return [" ".join(dice.choices("abcdefghijklmnop", k=dice.randint(2, 8))) for _ in range(rows)]


def prepare(folder: Path, rows: int) -> list[str]:
    from score_model import make_model

    prompts = prompts_of(rows)
    with (folder / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    make_model(folder / "model", hidden=256)
    return prompts


def engine_of(folder: Path, **options):
    """As muster_score makes it, but that it remembers the tokens of its answers."""
    # In this process, so that a turn of either doesn't wait for another process to be scheduled.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from muster_score.engines import Vllm
    from muster_score.prompts import Sampling

    class Remembers(Vllm):
        def __init__(self, *words, **named):
            super().__init__(*words, **named)
            self.tokens: dict[tuple[int, ...], list[int]] = {}  # prompt: answer

        def _answer(self, row, output):
            self.tokens[tuple(row.ids)] = list(output.token_ids)
            return Vllm._answer(row, output)

    sampling = Sampling(max_tokens=MAX_TOKENS)
    return Remembers(str(folder / "model"), sampling, **ENGINE, **options), sampling


def bare(engine, prompts: list[str]) -> tuple[dict[tuple[int, ...], list[int]], float]:
    """LLM.generate with all prompts at once: answers by prompt, in tokens, and seconds."""
    greedy = engine.vllm.SamplingParams(max_tokens=MAX_TOKENS, temperature=0)
    began = time.perf_counter()
    done = engine.engine.generate(prompts, greedy, use_tqdm=False)
    seconds = time.perf_counter() - began
    return {tuple(one.prompt_token_ids): list(one.outputs[0].token_ids) for one in done}, seconds


def scored(engine, folder: Path, turn: int, sampling) -> float:
    """Seconds of a worker, without the loading."""
    from muster_score.plan import Options, make_plan
    from muster_score.worker import Worker

    engine.tokens.clear()
    given = Options(
        f"{folder}/in.jsonl",
        f"{folder}/out{turn}",
        shard_rows=4 * BATCH,
        batch_size=BATCH,
        sampling=sampling,
    )
    began = time.perf_counter()
    Worker(given, make_plan(given), engine, predicts=False, owner="1").run()
    return time.perf_counter() - began


def differ(ours: dict, theirs: dict) -> int:
    return sum(ours.get(prompt) != answer for prompt, answer in theirs.items())


def tokens(folder: Path, rows: int, turns: int) -> dict:
    prompts = prepare(folder, rows)
    engine, sampling = engine_of(folder, enforce_eager=True)
    scored(engine, folder, 0, sampling)
    theirs, _ = bare(engine, prompts)
    return {"prompts": len(theirs), "differ": differ(engine.tokens, theirs)}


def speed(folder: Path, rows: int, turns: int) -> dict:
    prompts = prepare(folder, rows)
    engine, sampling = engine_of(folder)
    bare(engine, prompts[:BATCH])  # warm
    ours, theirs, unlike = [], [], 0
    for turn in range(turns):
        answers, seconds = bare(engine, prompts)
        theirs.append(rows / seconds)
        ours.append(rows / scored(engine, folder, turn, sampling))
        unlike += differ(engine.tokens, answers)
    return {
        "prompts": len(answers),
        "differ": unlike,
        "rows_per_s": ours,
        "bare_rows_per_s": theirs,
    }


def words_of(text: str) -> str:
    """Ray makes text of tokens by transformers' tokenizer, vLLM by its own way: they set other spaces."""
    return "".join(text.split())


def by_ray(folder: Path, rows: int, turns: int) -> dict:
    """Rows a second from its first batch that is done to its last: starting Ray and the engine doesn't count."""
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    config = vLLMEngineProcessorConfig(
        model_source=str(folder / "model"),
        engine_kwargs=dict(ENGINE),
        batch_size=BATCH,
        concurrency=1,
        log_engine_metrics=False,
        placement_group_config={"bundles": [{"CPU": 1}]},
        chat_template_stage=False,
    )
    sampling = {"temperature": 0, "max_tokens": MAX_TOKENS}
    processor = build_processor(
        config,
        preprocess=lambda row: {"prompt": row["prompt"], "sampling_params": sampling},
        postprocess=lambda row: {"prompt": row["prompt"], "answer": row["generated_text"]},
    )
    read = ray.data.read_json(f"{folder}/in.jsonl", override_num_blocks=rows // BATCH)
    seen, answers = [], {}
    for batch in processor(read).iter_batches(batch_size=None, prefetch_batches=0):
        seen.append((time.perf_counter(), len(batch["prompt"])))
        answers |= dict(zip(map(str, batch["prompt"]), map(str, batch["answer"]), strict=True))
    counted, seconds = sum(count for _, count in seen[1:]), seen[-1][0] - seen[0][0]
    ours = {}
    for part in sorted((folder / "out0").glob("part-*")):
        for line in map(json.loads, part.read_text().splitlines()):
            ours[line["prompt"]] = line["answer"]
    return {
        "rows": sum(count for _, count in seen),
        "counted": counted,
        "rows_per_s": counted / seconds if counted else 0.0,
        "differ": sum(
            words_of(ours.get(prompt, "")) != words_of(answer) for prompt, answer in answers.items()
        ),
    }


def main() -> int:
    what, folder, rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    found = {"tokens": tokens, "speed": speed, "ray": by_ray}[what](folder, rows, turns)
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":  # vLLM and Ray may start it anew in processes of their own
    sys.exit(main())
