"""What a run tells of itself: model FLOP/s utilisation, profiles."""

import json
import os
import signal
import statistics
import time

import pytest
import resume
from harness import START_TIMEOUT_S, TINY_MODEL, Gang
from test_schema import train

STEPS, PEAK_TFLOPS = 5, 0.05


def flops_per_token(length: float) -> tuple[float, float]:
    """The two conventions of docs/trainer.md, from the shapes: 6N + 6·L·H·S and 6N + 12·L·H·S."""
    d, f, v = TINY_MODEL["hidden_size"], TINY_MODEL["intermediate_size"], TINY_MODEL["vocab_size"]
    layers, kv = (
        TINY_MODEL["num_hidden_layers"],
        d * TINY_MODEL["num_key_value_heads"] // TINY_MODEL["num_attention_heads"],
    )
    parameters = 2 * v * d + d + layers * (2 * d * d + 2 * d * kv + 3 * d * f + 2 * d)
    return 6 * parameters + 6 * layers * d * length, 6 * parameters + 12 * layers * d * length


@pytest.fixture(scope="module")
def gang(trainer_bin, tokens, tmp_path_factory):
    settings = resume.config(
        tokens,
        save_steps=0,
        max_steps=STEPS,
        peak_tflops=PEAK_TFLOPS,
        profile_steps=2,
        zero_stage=3,
    )
    with Gang(trainer_bin, settings, 2, tmp_path_factory.mktemp("reports") / "run") as gang:
        return gang.finish()


def test_both_mfus_are_the_models_flops_by_the_peak_of_all_ranks(gang):
    lines = [event for event in gang.events if "mfu_causal" in event]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    length = json.loads((gang.folder / "trainer.json").read_text())["max_length"]
    causal, full = flops_per_token(length)
    for line in lines:
        assert line["mfu_causal"] == pytest.approx(
            line["tokens_per_s"] * causal / (2 * PEAK_TFLOPS * 1e12), rel=1e-9
        )
        assert line["mfu_full"] == pytest.approx(
            line["tokens_per_s"] * full / (2 * PEAK_TFLOPS * 1e12), rel=1e-9
        )
    assert all("mfu_causal" in line and "mfu_full" in line for line in gang.lines)


def test_every_rank_tells_its_own_time_and_one_that_is_slowed_shows(trainer_bin, tokens, tmp_path):
    """Slowed down by SIGSTOP: whole steps take as long for all ranks, their own part of them doesn't."""
    settings = resume.config(tokens, save_steps=0, max_steps=1_000_000, log_interval=50)
    with Gang(trainer_bin, settings, 3, tmp_path / "run") as gang:
        gang.wait_for_step(50)
        gang.take_datagrams()
        gang.own_times.clear()  # what was told before it is slowed
        victim = gang.processes[2].pid
        end = time.monotonic() + 2 * START_TIMEOUT_S
        while min(len(gang.own_times.get(rank, [])) for rank in range(3)) < 12:
            assert time.monotonic() < end, gang.own_times
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.018)  # not a condition: a tenth of its speed, whatever it does
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.002)
            gang.take_datagrams()
        gang.signal(signal.SIGKILL)
    slow, *others = (statistics.median(gang.own_times[rank][2:]) for rank in (2, 1, 0))
    assert all(slow > 1.3 * other > 0 for other in others), (slow, others)


def test_a_profile_is_a_chrome_trace_with_named_ranges_from_every_rank(gang):
    for rank in range(2):
        # The first two steps warm up.
        trace = json.loads(
            (gang.folder / "profile" / f"step-00000003.rank-{rank}.json").read_text()
        )
        events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        names = [event["name"] for event in events]
        for name, count in (
            ("read the batch", 2),
            ("exchange with other ranks", 2),
            ("optimizer", 2),
        ):
            assert names.count(name) == count, name
        for name in (
            "unshard layer 1",
            "forward layer 0",
            "backward layer 1",
            "reduce layer 0",
            "forward embedding",
            "forward head",
        ):
            assert any(found == name or found.startswith(name + ",") for found in names), name
        assert any(name.startswith("aten::") for name in names), "operations are there, too"
        assert all(event["dur"] >= 0 for event in events)
    assert len(list((gang.folder / "profile").iterdir())) == 2
    assert b"profile path=" in (gang.folder / "0.out").read_bytes()


def test_a_profile_that_cant_be_written_is_told_and_the_run_goes_on(trainer_bin, tokens, tmp_path):
    (tmp_path / "profile").write_text("in the way")
    done = train(
        trainer_bin, tmp_path, resume.config(tokens, save_steps=0, max_steps=2, profile_steps=1)
    )
    assert done.returncode == 0 and "step=2 " in done.stdout, done.stderr
    assert (
        f"the profile can't be written to {tmp_path}/profile/step-00000002.rank-0.json"
        in done.stderr
    )


def test_a_running_training_saves_and_records_what_it_is_asked_for(trainer_bin, tokens, tmp_path):
    requests = tmp_path / "requests"
    settings = resume.config(tokens, save_steps=0, max_steps=1_000_000)
    asks = {"MUSTER_REQUEST_DIR": str(requests)}
    with Gang(trainer_bin, settings, 2, tmp_path / "run", **asks) as gang:
        gang.wait_for_step(3)
        requests.mkdir()
        (requests / "profile.new").write_text("2")
        (requests / "profile.new").rename(requests / "profile")
        (requests / "save").touch()
        gang.wait_for_profiles(2)
        gang.wait_for_event("checkpoint")
        assert not list(requests.iterdir())
        gang.signal(signal.SIGTERM, [0])
        gang.finish()
    profiles = list((gang.folder / "profile").iterdir())
    assert len({path.name.split(".")[0] for path in profiles}) == 1, "all record the same steps"
    for path in profiles:
        names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
        assert names.count("optimizer") == 2
