"""bench/run.sh resume-reshard: a run that is stopped and resumed, on as many ranks, on others and with another ZeRO stage,
beside the same run undisturbed."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import resume


def main() -> int:
    trainer_bin = harness.trainer_binary()
    schema = json.loads(
        subprocess.run([trainer_bin, "--schema"], check=True, capture_output=True, text=True).stdout
    )
    stages = (
        (1, min(3, schema["properties"]["zero_stage"]["maximum"]))
        if schema["properties"]["zero_stage"]["maximum"] > 1
        else (1, 0)
    )
    with tempfile.TemporaryDirectory(prefix="bench-reshard-") as name:
        folder = Path(name)
        found = resume.reshard(
            trainer_bin, harness.make_tokens(folder / "tokens"), folder / "runs", stages
        )
    print(found)
    peer = "60 steps at once on 4 ranks"
    stage = f"ZeRO-{stages[0]} -> {stages[1]}"
    return harness.report(
        [
            harness.figure(
                "same world: steps not equal bit for bit",
                found["same_bitwise"] + found["same_tokens_differ"],
                "",
                0,
                peer=peer,
            ),
            harness.figure(
                "4 -> 2 -> 3 ranks: steps with other token ids",
                found["ranks_tokens_differ"],
                "",
                0,
                peer=peer,
            ),
            harness.figure(
                "4 -> 2 -> 3 ranks: loss", found["ranks_loss"], "relative", 1e-6, peer=peer
            ),
            harness.figure(
                f"{stage}: steps with other token ids",
                found["stage_tokens_differ"],
                "",
                0,
                peer=peer,
            ),
            harness.figure(f"{stage}: loss", found["stage_loss"], "relative", 1e-6, peer=peer),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
