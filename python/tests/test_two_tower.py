"""programs/two_tower.py: its data, which needs no torch; and its model, where the environment of row two-tower is there."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "programs"), str(ROOT / "bench")]

from two_tower_data import HISTORY_MOST, World, recall, shares_of
from two_tower_environment import environment_of_two_tower

ENVIRONMENT = environment_of_two_tower(may_make=False)


@pytest.fixture(scope="module")
def world():
    return World(users=60, items=200, seed=3)


def test_the_same_seed_makes_the_same_data(world):
    again = World(users=60, items=200, seed=3)
    assert again.user_history == world.user_history and again.item_text == world.item_text
    other = World(users=60, items=200, seed=4)
    assert other.user_history != world.user_history


def test_users_mostly_take_what_is_relevant_to_them():
    pairs = World(users=60, items=200, seed=3).interactions(4000)
    wanted = [World(users=60, items=200, seed=3).relevant(user, 50) for user in range(60)]
    taken = np.mean([item in wanted[user] for user, item in pairs])
    assert taken > 0.8, "with items at random it would be 0.25"
    assert set(pairs[:, 0]) == set(range(60))


def test_bags_have_different_lengths_and_no_id_that_stands_for_padding(world):
    lengths = {len(history) for history in world.user_history}
    assert len(lengths) > 5 and min(lengths) >= 1 and max(lengths) <= HISTORY_MOST
    ids = {id for history in world.user_history for id in history}
    assert min(ids) >= 0 and max(ids) < 200


def test_recall_is_one_for_the_truth_and_chance_for_a_guess(world):
    wanted = [world.relevant(user, 10) for user in range(60)]
    assert recall([sorted(one) for one in wanted], wanted) == 1
    guess = np.random.default_rng(0).permuted(np.tile(np.arange(200), (60, 1)), axis=1)[:, :10]
    assert recall(guess, wanted) < 0.15


def test_log_shares_are_how_often_an_item_is_there():
    shares = shares_of(np.array([0, 0, 0, 2]), 3)
    np.testing.assert_allclose(np.exp(shares), [0.75, 0.25, 0.25])  # the second as if it were once


@pytest.mark.skipif(
    ENVIRONMENT is None,
    reason="TorchRec has an environment of its own, which bench/run.sh two-tower makes",
)
def test_the_model_in_the_environment_that_has_torchrec():
    path = f"{ROOT}/python:{ROOT}/programs"
    checks = Path(__file__).with_name("two_tower_checks.py")
    done = subprocess.run(
        [
            ENVIRONMENT / "bin" / "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            checks,
        ],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
