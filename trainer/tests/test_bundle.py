"""What a bundle for a machine with a GPU (deploy/gpu-bundle.sh) is tried with where there is none: ranks on the CPU."""

import resume
from harness import Gang

STEPS, SAVED_AT = 12, 6


def test_ranks_train_on_the_cpu_and_resume_with_the_same_bits(trainer_bin, tokens, tmp_path):
    def run(name: str, ranks: int, resume_from=()) -> Gang:
        config = resume.config(tokens, max_steps=STEPS, save_steps=SAVED_AT, zero_stage=3)
        with Gang(
            trainer_bin,
            config,
            ranks,
            tmp_path / name,
            resume_from=resume_from,
            CUDA_VISIBLE_DEVICES="",
        ) as gang:
            return gang.finish()

    whole = run("whole", 2)
    rest = run("rest", 2, [whole.checkpoint(SAVED_AT)])
    for metric in ("loss", "grad_norm"):
        wanted = whole.metric(metric)
        assert rest.metric(metric) == {
            step: wanted[step] for step in range(SAVED_AT + 1, STEPS + 1)
        }
