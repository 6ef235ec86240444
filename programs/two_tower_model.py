"""The towers: text, bags of ids and numbers become a vector of length one."""

import os
from dataclasses import dataclass

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.crossnet import CrossNet  # DCN-v2: a whole matrix a layer
from torchrec.modules.mlp import MLP
from two_tower_data import CATEGORIES, DENSE, WORDS

WIDTH = 32  # of an embedding, of the text's vector, and of what a tower gives


@dataclass
class Features:
    """Of a batch of queries or of items."""

    tokens: torch.Tensor  # [rows, words]
    mask: torch.Tensor  # [rows, words]: 1 where there is a word, 0 where it is padding
    bags: KeyedJaggedTensor
    dense: torch.Tensor  # [rows, DENSE]


class WordTokens:
    """For an encoder made on the spot: a word w17 is its number."""

    size = WORDS + 1  # 0 is padding

    def __call__(self, texts: list[str], **_) -> dict:
        rows = [[int(word[1:]) + 1 for word in text.split()] for text in texts]
        most = max(map(len, rows))
        ids = torch.tensor([row + [0] * (most - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def tokenizer_of(places: list[str]):
    """From the first that has one: muster-trainer's adapters lie below a directory that does."""
    from transformers import AutoTokenizer

    for place in places:
        if os.path.exists(os.path.join(place, "tokenizer_config.json")):
            tokenizer = AutoTokenizer.from_pretrained(place)
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            return tokenizer
    raise FileNotFoundError(f"--encoder: no tokenizer_config.json in {', '.join(places)}")


def load_encoder(directory: str, lora_rank: int):
    """(tokenizer, encoder). A Hugging Face directory, as muster-trainer exports it, an adapter (LoRA) on its base, or "": a small one of its own.
    `lora_rank`: trains an adapter of it alone; 0: all of it."""
    from transformers import AutoModel, BertConfig, BertModel

    if not directory:
        # fmt: off
        config = BertConfig(vocab_size=WordTokens.size, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                            max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        # fmt: on
        tokenizer, encoder = WordTokens(), BertModel(config, add_pooling_layer=False)
    elif os.path.exists(os.path.join(directory, "adapter_config.json")):
        from peft import AutoPeftModelForCausalLM

        adapted = AutoPeftModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        base = adapted.peft_config["default"].base_model_name_or_path
        encoder = adapted.merge_and_unload().base_model.requires_grad_(True)
        tokenizer = tokenizer_of([directory, os.path.dirname(os.path.abspath(directory)), base])
    else:
        tokenizer = tokenizer_of([directory])
        encoder = AutoModel.from_pretrained(directory, dtype=torch.float32)
    if lora_rank:
        from peft import LoraConfig, get_peft_model

        wanted = LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear")
        encoder = get_peft_model(encoder, wanted)
    return tokenizer, encoder


def mean_of_words(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[rows, words, width] -> [rows, width], without padding."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


class Tower(nn.Module):
    def __init__(self, encoder: nn.Module, tables: dict[str, int]):
        """`tables`: by the name of a feature, how many ids there are."""
        super().__init__()
        self.encoder = encoder  # both towers have the same
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"{name}_table",
                    embedding_dim=WIDTH,
                    num_embeddings=count,
                    feature_names=[name],
                )
                for name, count in tables.items()
            ]
        )
        self.names = list(tables)
        self.text = nn.Linear(encoder.config.hidden_size, WIDTH)
        self.numbers = MLP(DENSE, [WIDTH, WIDTH])
        width = WIDTH * (2 + len(tables))
        self.cross = CrossNet(width, num_layers=2)
        self.deep = MLP(width, [2 * WIDTH])
        self.out = nn.Linear(width + 2 * WIDTH, WIDTH)

    def forward(self, features: Features) -> torch.Tensor:  # [rows, WIDTH]
        states = self.encoder(
            input_ids=features.tokens, attention_mask=features.mask
        ).last_hidden_state
        text = self.text(mean_of_words(states, features.mask))
        bags = self.bags(features.bags).to_dict()
        parts = [text, self.numbers(features.dense), *(bags[name] for name in self.names)]
        wide = torch.cat(parts, dim=1)
        both = torch.cat([self.cross(wide), self.deep(wide)], dim=1)
        return nn.functional.normalize(self.out(both), dim=1)


def query_tables(users: int, items: int) -> dict[str, int]:
    return {"user": users, "history": items}


def item_tables(items: int) -> dict[str, int]:
    return {"item": items, "categories": CATEGORIES}


def bags_of(columns: dict[str, list[list[int]]]) -> KeyedJaggedTensor:
    """Lists of ids, each as long as it is: no id stands for padding, which a sum would take for one."""
    values = [id for rows in columns.values() for row in rows for id in row]
    lengths = [len(row) for rows in columns.values() for row in rows]
    return KeyedJaggedTensor(
        keys=list(columns), values=torch.tensor(values), lengths=torch.tensor(lengths)
    )
