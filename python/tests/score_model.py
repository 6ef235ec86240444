"""A small Llama with words for tokens, made on the spot."""

from pathlib import Path


def make_model(folder: Path, hidden: int = 32, context: int = 2048) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    # fmt: off
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=len(words), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, bos_token_id=None, pad_token_id=0,
                         max_position_embeddings=context)
    # fmt: on
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
