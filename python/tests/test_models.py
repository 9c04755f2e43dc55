"""Randomly initialised models in bf16: on us they are as near to fp32 as they are with eager attention."""

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
transformers = pytest.importorskip("transformers", minversion="5.0")
import tilewise.huggingface  # noqa: E402, F401

VOCABULARY, STEPS = 257, 10


def config(name, device):
    """Llama and Gemma 2 with their own head dims on a GPU, small on the CPU; grouped heads, Gemma with a sliding window that
    is shorter than the text and softcaps."""
    big = device == "cuda"
    heads, layers = (8, 4) if big else (4, 2)
    head_dim = (128 if name == "llama" else 256) if big else 32
    common = dict(
        vocab_size=VOCABULARY,
        hidden_size=heads * head_dim,
        intermediate_size=2 * heads * head_dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=head_dim,
    )
    if name == "llama":
        return transformers.LlamaConfig(**common)
    return transformers.Gemma2Config(
        **common, sliding_window=64, attn_logit_softcapping=20.0, query_pre_attn_scalar=head_dim
    )


def train(implementation, dtype, base, ids):
    """Logits before and after ten steps, and the losses."""
    model = transformers.AutoModelForCausalLM.from_config(
        base.config, attn_implementation=implementation, dtype=dtype
    )
    model.load_state_dict(base.state_dict())
    model.to(ids.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    logits, losses = [], []
    for step in range(STEPS + 1):
        result = model(ids, labels=ids)
        losses.append(result.loss.item())
        if step in (0, STEPS):
            logits.append(result.logits.detach().double())
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
    return *logits, torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_logits_and_ten_training_steps_track_eager(device, name):
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(config(name, device), attn_implementation="eager")
    ids = torch.randint(0, VOCABULARY, (2, 160), device=device)
    exact = train("eager", torch.float32, base, ids)
    eager = train("eager", torch.bfloat16, base, ids)
    ours = train("tilewise", torch.bfloat16, base, ids)
    assert exact[2][-1] < 0.9 * exact[2][0], "the model does not learn"
    assert not torch.equal(ours[0], eager[0]), "the model did not run on us"
    for what, *values in zip(("logits", "logits after training", "losses"), exact, eager, ours):
        want, theirs, mine = values
        error, allowed = (mine - want).norm().item(), 2 * (theirs - want).norm().item()
        print(f"{name} {what}: {error:.3e}, twice eager's {allowed:.3e}")
        assert error <= allowed, f"{what}: {error:.3e} from fp32, eager {allowed / 2:.3e}"
