"""README.md's Python snippets run."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def snippets():
    return re.findall(r"\n```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def name(tmp_path):
    """A folder with a small language model, for the snippet that loads one."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return str(tmp_path)


def test_there_are_snippets():
    assert len(snippets()) >= 5


@pytest.mark.parametrize("number", range(len(snippets())))
def test_snippet(number, request):
    code, names = snippets()[number], {}
    if re.search("torch|transformers|flash_attn", code):
        pytest.importorskip("torch", minversion="2.10")
    if "transformers" in code:
        names["name"] = request.getfixturevalue("name")
    try:
        exec(compile(code, f"README snippet {number}", "exec"), names)
        if "activate_flash_attention_impl" in code:
            assert names["torch"].nn.attention.current_flash_attention_impl() == "tilewise"
    finally:
        if "activate_flash_attention_impl" in code:
            names["torch"].nn.attention.restore_flash_attention_impl()
    if "backward" in code:
        assert all(names[n].grad is not None for n in "qkv")
    if "model" in names:
        assert names["model"].config._attn_implementation == "tilewise"
