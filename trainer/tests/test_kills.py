"""Short forms of the rows kill-checkpoint, peer-death and resume-reshard."""

import signal

import kills
import resume


def test_a_kill_while_a_checkpoint_is_written_leaves_one_that_loads(trainer_bin, tokens, tmp_path):
    found = kills.kill_while_writing(trainer_bin, tokens, tmp_path, 4, ranks=2)
    assert found["hits"] == 4
    assert (found["not_resumed"], found["refused"], found["went_back"]) == (0, 0, 0), found


def test_a_stopped_peer_ends_the_others_at_the_timeout(trainer_bin, tokens, tmp_path):
    took_s = kills.end_of_peers(trainer_bin, tokens, tmp_path / "run", signal.SIGSTOP, timeout_s=2)
    assert 1 < took_s < 8, f"took {took_s:.1f} s"


def test_any_change_of_ranks_and_stage_is_the_same_run(trainer_bin, tokens, tmp_path):
    found = resume.reshard(trainer_bin, tokens, tmp_path, (1, 0))
    assert found.pop("ranks_loss") <= 1e-6 and found.pop("stage_loss") <= 1e-6
    assert set(found.values()) == {0}, found
