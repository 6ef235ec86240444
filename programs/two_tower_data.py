"""Made data whose truth is known: users and items are points, and whom an item is for follows from them. No torch here.

A user and an item each have a latent vector; a user takes items in proportion to exp(affinity / TEMPERATURE) times the item's popularity. A model sees neither: it
sees ids, bags of ids of different lengths (what a user has taken before, an item's categories), words, and noisy numbers. What it finds is compared with the
items that the user is the likeliest to take.
"""

from pathlib import Path

import numpy as np

LATENT, DENSE = 8, 6  # dimensions: of the truth; of what is seen of it as numbers
CATEGORIES, WORDS, TEXT = 24, 64, 6  # how many categories and words there are; words of a text
HISTORY_MOST, CATEGORIES_MOST = 12, 3
TEMPERATURE, NOISE = 0.12, 0.2


class World:
    def __init__(self, users: int = 1000, items: int = 500, seed: int = 0):
        draw = np.random.default_rng(seed)
        self.users, self.items, self._draw = users, items, draw
        self._user = _unit(draw.normal(size=(users, LATENT)))
        self._item = _unit(draw.normal(size=(items, LATENT)))
        self._popular = 1.2 * draw.normal(size=items)  # as a logarithm
        seen = draw.normal(size=(LATENT, DENSE))
        self.user_dense = self._noisy(self._user @ seen)  # [users, DENSE]
        self.item_dense = self._noisy(self._item @ seen)
        themes = _unit(draw.normal(size=(WORDS, LATENT)))
        self.user_text = [self._text(one, themes) for one in self._user]
        self.item_text = [self._text(one, themes) for one in self._item]
        centres = _unit(draw.normal(size=(CATEGORIES, LATENT)))
        nearest = np.argsort(-(self._item @ centres.T), axis=1)
        self.item_categories = [
            row[: draw.integers(1, CATEGORIES_MOST + 1)].tolist() for row in nearest
        ]
        self.user_history = [
            self.taken_by(user, draw.integers(1, HISTORY_MOST + 1)).tolist()
            for user in range(users)
        ]

    def _noisy(self, values):
        return (values + NOISE * self._draw.normal(size=values.shape)).astype(np.float32)

    def _text(self, latent, themes) -> str:
        words = self._draw.choice(WORDS, size=TEXT, p=_softmax(themes @ latent / TEMPERATURE))
        return " ".join(f"w{word}" for word in words)

    def _wish(self, user: int):
        """[items]: the logarithm of how likely the user takes each, but for a constant."""
        return self._item @ self._user[user] / TEMPERATURE + self._popular

    def taken_by(self, user: int, count: int):
        return self._draw.choice(self.items, size=count, p=_softmax(self._wish(user)))

    def interactions(self, count: int):
        """[count, 2]: a user, and an item that the user took."""
        users = self._draw.integers(0, self.users, size=count)
        order = np.argsort(users, kind="stable")
        items = np.empty(count, dtype=np.int64)
        counts = np.bincount(users, minlength=self.users)
        done = 0
        for user in np.flatnonzero(counts):
            items[order[done : done + counts[user]]] = self.taken_by(user, counts[user])
            done += counts[user]
        return np.stack([users, items], axis=1)

    def relevant(self, user: int, count: int) -> set[int]:
        """The truth: the items that the user is the likeliest to take."""
        return set(np.argsort(-self._wish(user))[:count].tolist())

    def write_items(self, path: Path) -> None:
        """As Parquet, a row an item, for muster_score."""
        import pyarrow
        import pyarrow.parquet

        columns = {
            "item": list(range(self.items)),
            "text": self.item_text,
            "categories": self.item_categories,
            "dense": self.item_dense.tolist(),
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), path)


def shares_of(items, count: int):
    """log Q: how often each of `count` items is the one of an interaction, as a logarithm. An item that is never is none of a batch, either."""
    times = np.bincount(items, minlength=count)
    return np.log(np.maximum(times, 1) / len(items)).astype(np.float32)


def recall(found, wanted: list[set[int]]) -> float:
    """The share of what is wanted that is found, on average. `found`: a row of items for each."""
    shares = [len(want & set(map(int, row))) / len(want) for row, want in zip(found, wanted, strict=True)]  # fmt: skip
    return float(np.mean(shares))


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _softmax(values):
    shares = np.exp(values - values.max())
    return shares / shares.sum()
