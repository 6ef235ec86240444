"""An elastic trainer with warm_restart, resized 4 -> 2 -> 4 by musterd: each attempt goes on from the stop's checkpoint."""

import re

from local_system import wait_for
from small_system import (
    let_go,
    prepare_tokens,
    start,
    submit_trainer,
    submit_waiting,
    task,
    wait_ended,
)


def test_a_resize_goes_on_from_what_the_stop_left_in_the_file_cache(bare):
    tokens = prepare_tokens(bare, __file__)
    start(bare, hosts=("h01",), slots=4)
    path = bare.folder / "warm.yaml"
    path.write_text(f"""name: warm
queue: research
workers: {{min: 2, max: 4}}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 30s
trainer:
  model: {{model_type: llama, vocab_size: 259, hidden_size: 64, intermediate_size: 160, num_hidden_layers: 2, num_attention_heads: 4,
          num_key_value_heads: 2, max_position_embeddings: 64}}
  data: {tokens}
  max_length: 32
  global_batch_size: 4
  max_steps: 1000000
  learning_rate: 1e-4
  threads: 1
  warm_restart: true
""")
    number = submit_trainer(bare, path)

    def attempt(count: int, workers: int) -> dict:
        """The newest, once there are so many and it trains."""

        def found():
            attempts = task(bare.job(number))["attempts"]
            one = attempts[-1]
            reached = int((task(bare.job(number)).get("progress") or {}).get("step", 0))
            trains = reached > int(one.get("resumed_step", 0)) + 2
            return len(attempts) == count and int(one["workers"]) == workers and trains and one

        return wait_for(f"attempt {count} to train on {workers} ranks", found, 60)

    attempt(1, 4)
    claim = submit_waiting(bare, "claim", workers="2", queue="prod")
    shrunk = attempt(2, 2)
    let_go(bare, "claim")
    wait_ended(bare, claim)
    grown = attempt(3, 4)

    for one in (shrunk, grown):
        before, its = (
            bare.run(["logs", number, "--attempt", count, "--rank", 0]).stdout
            for count in (int(one["number"]) - 1, int(one["number"]))
        )
        step, saved = re.findall(r"checkpoint step=(\d+) path=(\S+)", before)[-1]
        assert f"stopped_at_step={step}" in before
        assert f"resumed from {saved} at step {step}" in its
        assert int(one["resumed_step"]) == int(step)
        assert "checkpoint refused" not in its
    assert int(task(bare.job(number))["restarts_used"]) == 0
    bare.run(["cancel", number])
    assert wait_ended(bare, number)["state"] == "CANCELLED"
