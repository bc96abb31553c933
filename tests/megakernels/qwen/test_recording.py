"""`megascope run qwen --record`: real weights, compiles and captures; only the TPU calls are stood in for."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.analysis import analyze
from analyzer.capture import open_capture
from megakernels.common.safetensors import CheckpointError
from megakernels.common.tokens import stop_tokens
from megakernels.qwen import checkpoint, weights
from megakernels.qwen.config import SMALL
from megakernels.qwen.plan import Plan
from megakernels.qwen.recording import Recording, record

ROOT = Path(__file__).parents[3]
FAKE = f"{Path(__file__).with_name('fake_tpu.py')}:layer"


class Words:
    """Stands in for the tokenizers library, which tests do without: token 7 is "w7"."""

    @classmethod
    def from_file(cls, path: str) -> "Words":
        assert Path(path).exists()
        return cls()

    def encode(self, text: str) -> Any:
        return SimpleNamespace(ids=[int(word.removeprefix("w")) for word in text.split()])

    def decode(self, tokens: list[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)

    def token_to_id(self, text: str) -> int | None:
        return int(text.removeprefix("w")) if text.startswith("w") else None


@pytest.fixture(autouse=True)
def _tokenizers(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Weights of the small model with a tokenizer; 25 and 99 end a text."""
    out = tmp_path_factory.mktemp("weights") / "w"
    plan = Plan(config=SMALL, cores=8)
    weights.convert(checkpoint.random_source(SMALL, 0), plan, out, lambda *_: None)
    (out / "tokenizer.json").write_text("{}")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [25, 99]}))
    return out


@pytest.mark.slow
def test_a_recorded_generation_is_text_and_capture(folder, tmp_path) -> None:
    said: list[str] = []
    asked = Recording("w10 w11 w20", 8, folder, tmp_path / "capture", device_layer=FAKE)
    # The stand-in chooses the token after the one it is fed; 25 ends the text.
    assert record(asked, said.append) == "w21 w22 w23 w24"
    manifest = json.loads((tmp_path / "capture" / "manifest.json").read_text())
    about = manifest["record"]
    assert about["outcome"] == {"tokens": list(range(21, 29)), "positions": 10}
    # 2 tokens of the prompt before the last and 8 steps: half of them timed without the trace, half with it.
    assert (about["warmup"], about["steps"]) == (0, 5)
    assert len(about["step_seconds_traced"]) == 5
    assert any("every step went on" in note for note in manifest["notes"])
    report = analyze(open_capture(tmp_path / "capture"), use_cache=False).report
    assert report["trace"]["join"]["joined"], report["trace"]["join"]
    phases = {row["phase"] for row in report["trace"]["comparison"]}
    assert {"in_proj", "recurrence", "attention", "down", "lm_head"} <= phases
    assert any("megascope report" in line for line in said)


def test_too_long_and_without_weights_is_refused(folder, tmp_path) -> None:
    with pytest.raises(
        ValueError, match="a prompt of 2 tokens and 500 more; the cache has room for 1 to 472"
    ):
        record(Recording("w1 w2", 500, folder, tmp_path / "c", capacity=512), print)
    with pytest.raises(CheckpointError, match="no weights given"):
        record(Recording("w1", 1, None, tmp_path / "c"), print)


def test_without_a_tpu_the_command_says_so(folder, tmp_path) -> None:
    command = [sys.executable, "-m", "megascope", "run", "qwen", "--weights", str(tmp_path / "w")]
    command += ["--prompt", "w1", "--record", str(tmp_path / "c")]
    shutil.copytree(folder, tmp_path / "w", ignore=shutil.ignore_patterns("tokenizer.json"))
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert out.returncode != 0
    assert "no TPU on this machine" in out.stderr
    assert "Traceback" not in out.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"generation_config.json": {"eos_token_id": [5, 7]}, "config.json": {"eos_token_id": 9}}, (5, 7)),
        ({"config.json": {"text_config": {"eos_token_id": 9}}}, (9,)),
        ({"tokenizer_config.json": {"eos_token": {"content": "w3"}}}, (3,)),
        ({"tokenizer_config.json": {"eos_token": "unheard"}}, ()),
        ({}, ()),
    ],
)
def test_tokens_that_end_a_text(folder, tmp_path, files, ends) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert stop_tokens(tmp_path) == ends
