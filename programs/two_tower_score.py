"""Vectors of items, for muster_score: --engine two_tower_score:Items. TWO_TOWER_MODEL names what two_tower.py --export has written.

A row is an item as World.write_items has it: text, categories, dense, and item, its number.
"""

import os
from pathlib import Path

import torch
from two_tower import load
from two_tower_model import Features, bags_of


class Items:
    def __init__(self):
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.model = load(Path(os.environ["TWO_TOWER_MODEL"]))

    @torch.no_grad()
    def __call__(self, rows: list[dict]) -> list[dict]:
        texts = [row["text"] for row in rows]
        tokens = self.model.tokenizer(texts, return_tensors="pt", padding=True)
        bags = {
            "item": [[row["item"]] for row in rows],
            "categories": [row["categories"] for row in rows],
        }
        dense = torch.tensor([row["dense"] for row in rows])
        features = Features(tokens["input_ids"], tokens["attention_mask"], bags_of(bags), dense)
        return [{"vector": vector} for vector in self.model.item(features).tolist()]
