"""Run by the demo with the Python environment: loads an exported model with transformers and prints, as one JSON line,

    {"loss": …, "text": …, "transformers": …, "parameters": …}

the loss on given token ids (what the trainer says of the same ids stands beside it) and the continuation of a prompt.

    verify_export.py MODEL_DIR IDS_FILE LENGTH PROMPT
"""

import json
import sys

import numpy
import torch
import transformers


def main() -> None:
    model_dir, ids_file, length, prompt = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    ids = torch.from_numpy(
        numpy.fromfile(ids_file, dtype="<i4").reshape(-1, length).astype("int64")
    )  # [batch, max_length + 1]
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits  # [batch, max_length, vocabulary]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).double(), ids[:, 1:].flatten()
        )
        start = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        torch.manual_seed(1)
        whole = model.generate(
            start,
            max_new_tokens=40,
            do_sample=True,
            temperature=0.7,
            repetition_penalty=1.3,
            pad_token_id=0,
        )
    print(
        json.dumps(
            {
                "loss": loss.item(),
                "text": tokenizer.decode(whole[0], skip_special_tokens=True),
                "transformers": transformers.__version__,
                "parameters": sum(p.numel() for p in model.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
