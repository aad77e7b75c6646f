"""What load_model gives, and that whatever keeps a model from being used is one line that names it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from agentlightning.engines.models import load_model, model_context_length
from agentlightning.errors import ModelError, install
from agentlightning.settings.fields import ModelConfig
from agentlightning.spellings.absent import why
from tests.tiny import CONTEXT, save_tiny, tiny_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def refusal(path: str | Path, **config: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(ModelConfig(path=str(path), **config))  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_gives_a_model_ready_to_sample(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = load_model(ModelConfig(path=str(saved), device="cpu"))
    assert (loaded.device.type, loaded.dtype, loaded.context_length) == ("cpu", torch.float32, CONTEXT)
    assert loaded.stop_token_ids == (2,)
    assert not loaded.model.training
    assert next(loaded.model.parameters()).dtype == torch.float32
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hi")) == "hi"
    assert load_model(ModelConfig(path=str(saved), device="cpu", dtype="bfloat16")).model.dtype == torch.bfloat16
    assert capfd.readouterr() == ("", "")


def test_every_end_of_turn_of_the_generation_config_and_the_tokenizer_stops(folder: Path) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [7, 0]}))
    assert load_model(ModelConfig(path=str(folder), device="cpu")).stop_token_ids == (7, 0, 2)


def drop(*patterns: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for pattern in patterns:
            for file in folder.glob(pattern):
                file.unlink()

    return change


def without_template(folder: Path) -> None:
    drop("chat_template.jinja")(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"}))


def another_layer(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3, "layer_types": None}))


def quantised(method: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        told = {"quant_method": method, "bits": 4, "group_size": 128, "load_in_4bit": True}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": told}))

    return change


def an_adapter(folder: Path) -> None:
    drop("config.json", "*.safetensors")(folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").touch()


def only_gguf(folder: Path) -> None:
    drop("*.safetensors")(folder)
    (folder / "model.Q4_1.gguf").write_bytes(b"GGUF")


def another_token(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<extra{i}>" for i in range(20)])
    tokenizer.save_pretrained(folder)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            another_token,
            "7 of its 279 tokens ('<extra13>' is 272) beyond the model's embedding of 272 rows: call "
            "model.resize_token_embeddings(279)",
        ),
        (
            lambda f: (f / "model.safetensors").write_bytes(LFS),
            "model.safetensors is a pointer of Git LFS and no weights",
        ),
        (drop("config.json"), "has no config.json"),
        (drop("*.safetensors"), "has no weights"),
        (drop("tokenizer*", "*.jinja", "special*"), "has no tokenizer"),
        (without_template, "has no chat template"),
        (another_layer, "lacks 9 of the model's weights (model.layers.2."),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 100), "its weights cannot be loaded"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be loaded"),
        (lambda f: (f / "config.json").write_text('{"model_type": "no-such-model"}'), "cannot be loaded"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "t5"}'),
            f"is an encoder-decoder model (t5): {why('encoder_decoder')}",
        ),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "bart"}'),
            f"is an encoder-decoder model (bart): {why('bart')}",
        ),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "qwen2_vl"}'),
            f"is a qwen2_vl model with vision_config: {why('vlm')}",
        ),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "clip"}'),
            f"is a clip model with vision_config: {why('vlm')}",
        ),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "vit"}'),
            "its weights cannot be loaded as a causal language model",
        ),
        (quantised("gptq"), f"is quantised (gptq): {why('gptq')}"),
        (quantised("awq"), f"is quantised (awq): {why('awq')}"),
        (quantised("bitsandbytes"), f"is quantised (bitsandbytes): {why('load_in_4bit')}"),
        (quantised("compressed-tensors"), f"is quantised (compressed-tensors): {why('fp8')}"),
        (an_adapter, f"is an adapter: {why('lora')}"),
        (only_gguf, f": {why('gguf')}"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "its tokenizer cannot be loaded"),
    ],
    ids=[
        "embedding",
        "lfs",
        "config",
        "weights",
        "tokenizer",
        "template",
        "missing",
        "damaged",
        "json",
        "unknown",
        "t5",
        "bart",
        "vision",
        "clip",
        "vit",
        "gptq",
        "awq",
        "bnb",
        "ct",
        "adapter",
        "gguf",
        "tokenizer-json",
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(
    folder: Path, change: Callable[[Path], None], words: str
) -> None:
    change(folder)
    message = refusal(folder, device="cpu")
    assert words in message
    assert str(folder) in message


def test_a_folder_or_file_beside_the_model_is_answered_with_where_it_is(folder: Path, tmp_path: Path) -> None:
    assert refusal(folder / "config.json").endswith(f"give its folder, {folder}")
    run = tmp_path / "runs" / "run-1"
    shutil.copytree(folder, run / "checkpoints" / "step-000001")
    assert refusal(run).endswith(f"give one of those in it: {run / 'checkpoints' / 'step-000001'}")
    assert "is a URL" in refusal("http://127.0.0.1:8000/v1")


def test_a_chat_template_is_missed_before_the_weights_are_read(folder: Path) -> None:
    without_template(folder)
    (folder / "model.safetensors").write_bytes(b"x")
    assert "has no chat template" in refusal(folder)


@pytest.mark.parametrize("name", ["a b", "100%", "why?", "c#", "a%20b", "q?x=1&y=2", "ünï", "[x]"])
def test_a_models_folder_may_have_any_name(folder: Path, tmp_path: Path, name: str) -> None:
    assert load_model(ModelConfig(path=str(folder.rename(tmp_path / name)), device="cpu")).context_length == CONTEXT


def test_what_is_no_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    assert refusal("") == "no model given: set model.path (--model) to a Hugging Face folder or hub id"
    assert refusal(tmp_path / "missing") == f"there is no model folder {tmp_path / 'missing'}"
    assert refusal("./nope") == "there is no model folder ./nope"
    assert refusal("a/b/c") == "there is no model folder a/b/c"
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"GGUF")
    assert "is a file; a model is a Hugging Face folder" in refusal(file)
    assert refusal(file.rename(tmp_path / "model.gguf")) == f"{tmp_path / 'model.gguf'}: {why('gguf')}"


def test_a_hub_id_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/no-such-model", "modle"):
        assert refusal(name, device="cpu") == (
            f"there is no model folder {name}, nor is a model of that name in the Hugging Face cache (HF_HUB_OFFLINE "
            "is set)"
        )


@pytest.mark.parametrize(("name", "meant"), [("smollm", "smollm2"), ("smolm2", "smollm2"), ("latst", "latest")])
def test_a_misspelt_starter_or_latest_is_told_the_one_that_was_meant(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refusal(name, device="cpu").endswith(f"; did you mean {meant}?")


class Hub(BaseHTTPRequestHandler):
    """As much of a model hub as loading one folder takes."""

    folder: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        file = self.folder / path.rsplit("/", 1)[-1]
        if path.startswith("/api/models/team/tiny"):
            files = [{"rfilename": f.name} for f in self.folder.iterdir()]
            body = json.dumps(
                {"id": "team/tiny", "sha": "a" * 40, "siblings": files, "tags": [], "downloads": 0}
                if path.count("/") == 4
                else []
            )
            self.answer(200, body.encode())
        elif "/resolve/" in path and file.is_file():
            self.answer(200, file.read_bytes(), ETag=f'"{file.name}"')
        else:
            self.answer(404, b"", **{"X-Error-Code": "EntryNotFound" if "/team/tiny/" in path else "RepoNotFound"})

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": "a" * 40, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_hub_id_is_loaded_and_an_unknown_one_refused(saved: Path, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Hub,), {"folder": saved}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "from agentlightning.engines.models import load_model, ModelError\n"
        "from agentlightning.settings.fields import ModelConfig\n"
        "print(load_model(ModelConfig(path='team/tiny', device='cpu')).context_length)\n"
        "try:\n load_model(ModelConfig(path='team/other', device='cpu'))\n"
        "except ModelError as error:\n print(error)"
    )
    hub = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | hub)
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    context, unknown = done.stdout.splitlines()
    assert context == str(CONTEXT)
    assert unknown.startswith(
        "team/other is neither a folder here nor reachable on the Hugging Face hub: RepositoryNotFoundError"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_that_is_not_there_is_refused(saved: Path, device: str) -> None:
    assert f"model.device is '{device}' and torch" in refusal(saved, device=device)


@pytest.mark.parametrize("device", ["gpu", "mps", ""])
def test_an_unknown_device_is_refused(saved: Path, device: str) -> None:
    said = refusal(saved, device=device)
    assert "is none of auto, cpu, cuda, cuda:N" in said and said.endswith(why("mps") or "") == (device == "mps")


def test_a_missing_library_is_one_line_that_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from agentlightning.errors import MissingExtra\n"
        "try:\n import agentlightning.engines.models\n"
        "except MissingExtra as error:\n print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"sampling and training need torch: {install('train')}"


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (None, 4096),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, 4096),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, 4096),
        (
            {
                "rope_type": "longrope",
                "long_factor": [1.0] * 8,
                "short_factor": [1.0] * 8,
                "original_max_position_embeddings": 1024,
                "rope_theta": 1e4,
            },
            1024,
        ),
    ],
)
def test_the_context_ends_where_a_rotary_scaling_would_depend_on_the_batch(
    rope: dict[str, object] | None, limit: int
) -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=rope)
    assert model_context_length(config) == limit
