"""A GGUF file as a Hugging Face folder, ``python -m agentlightning.engines.models_gguf FILE OUT``.

Dequantised to float32, and checked with one greedy answer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

QUESTION, ANSWER = "What is 2+2?", "4"


def convert(gguf: Path, out: Path) -> None:
    """Writes the model and its tokenizer to ``out``. Raises SystemExit where the result does not answer as it
    should."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    load_tokenizer, load_model = (
        cast("Any", AutoTokenizer).from_pretrained,
        cast("Any", AutoModelForCausalLM).from_pretrained,
    )
    where, name = str(gguf.parent), gguf.name
    tokenizer = load_tokenizer(where, gguf_file=name)
    # Without GgufConfig the model still counts as quantised, and save_pretrained refuses it.
    dequantised: Any = cast("Any", GgufConfig)(dequantize=True)
    model = load_model(where, gguf_file=name, dtype=torch.float32, quantization_config=dequantised)
    start, end = tokenizer.convert_tokens_to_ids("<|im_start|>"), tokenizer.convert_tokens_to_ids("<|im_end|>")
    # The file names <|im_end|> as the end of a turn and as padding; both configurations have to, or generation runs on.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|im_end|>"
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = start, end, end
    model.generation_config = GenerationConfig(bos_token_id=start, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)

    tokenizer, model = load_tokenizer(out), load_model(out)
    asked = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if ANSWER not in text or int(ids[-1]) != end:
        raise SystemExit(f"the converted model does not answer as it should: {QUESTION!r} -> {text!r}")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
