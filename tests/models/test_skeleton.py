"""Skeleton networks: steps against clips, in every form."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.models.skeleton.network import SkeletonNet
from kit.skeleton_nets import (
    BONES,
    FORMS,
    NTU_BONES,
    REFERENCES,
    SIZES,
    assert_same,
    outputs,
    small_net,
    stepped,
)

needs_references = pytest.mark.skipif(
    not REFERENCES.exists(), reason="needs ../shared/refs beside the repository"
)


pytestmark = pytest.mark.usefixtures("no_grad")


def stream(length: int, batch: int = 1, persons: int = 2) -> Tensor:
    return torch.randn(batch, length, persons, 5, 2, dtype=torch.float64)


def reference(name: str, **options: object) -> tuple[dict[str, np.ndarray], SkeletonNet, Tensor]:
    data = dict(np.load(REFERENCES / f"{name}.npz"))
    widths = (8, 8, 8, 8, 12, 12, 12, 16, 16, 16)
    net = SkeletonNet(60, 25, NTU_BONES, 20, widths=widths, **options)
    weights = {k[3:]: torch.from_numpy(v) for k, v in data.items() if k.startswith("sd/")}
    net.load_state_dict(weights)
    x = torch.from_numpy(data["x"]).double().permute(1, 3, 2, 0)[None]
    return data, net.double().eval(), x


CASES = [
    ("small_stgcn_mod_T100", {"padding": "none", "strides": (1,) * 10, "pool": 20}),
    ("small_agcn_T200", {"kind": "agcn", "pool": 50}),
]


@needs_references
@pytest.mark.parametrize(("name", "options"), CASES)
def test_clips_of_the_published_implementation(name: str, options: dict[str, object]) -> None:
    clip = {"attention": "clip"} if "agcn" in name else {}
    data, net, x = reference(name, **options, **clip)
    length = json.loads(str(data["info"]))["T_window"]
    y = net(x[:, :length])[0]
    assert (y - torch.from_numpy(data["y_reg_window"])).abs().max() <= 1e-9


@pytest.mark.long
@needs_references
@pytest.mark.parametrize(("name", "options"), CASES)
def test_streams_of_the_published_implementation(name: str, options: dict[str, object]) -> None:
    data, net, x = reference(name, **options)
    info = json.loads(str(data["info"]))
    assert net.receptive_field == info["receptive_field"]
    assert (net.padding, net.delay, net.stride) == (info["padding"], info["delay"], info["stride"])
    expected = torch.from_numpy(data["y_step"])
    given = stepped(net, x)
    assert list(given) == data["step_index"].tolist()
    assert (torch.cat(list(given.values())) - expected).abs().max() <= 1e-9
    for size in (1, 17, x.shape[1]):
        state = net.init_state(1)
        parts = [net.forward_steps(part, state).logits[0] for part in x.split(size, 1)]
        assert (torch.cat(parts) - expected).abs().max() <= 1e-9
    if "mod" in name:
        assert (expected - torch.from_numpy(data["y_reg_sliding"])).abs().max() <= 1e-9


def test_delays_and_receptive_fields_of_the_paper() -> None:
    with torch.device("meta"):
        net = SkeletonNet(60, 25, NTU_BONES, 20)
        starred = SkeletonNet(60, 25, NTU_BONES, 20, strides=(1,) * 10, padding="none", pool=220)
        causal = SkeletonNet(60, 25, NTU_BONES, 20, padding="causal")
    assert (net.layer_timing.receptive_field, net.layer_timing.delay) == (153, 76)
    assert (net.receptive_field, net.padding, net.delay, net.stride) == (449, 152, 296, 4)
    assert net.window == 449
    assert (starred.layer_timing.receptive_field, starred.layer_timing.delay) == (81, 80)
    assert (starred.receptive_field, starred.padding, starred.delay, starred.stride) == (
        *(300, 0),
        *(299, 1),
    )
    assert (causal.receptive_field, causal.delay, causal.stride) == (449, 0, 4)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_steps_and_chunks_are_the_ordinary_network(form: str) -> None:
    net, x = small_net(form), stream(90, batch=2)
    x[:, 20:70, 1] = 0  # long enough to sleep, and to wake
    x[0, :15, 0] = 0
    expected = outputs(net, x)
    assert len(expected) > 5
    assert min(expected) == net.delay
    assert_same(stepped(net, x), expected)
    for size in (1, 2, 7, 30, 90):
        state = net.init_state(2)
        parts = [net.forward_steps(part, state).logits for part in x.split(size, 1)]
        assert_same(dict(zip(expected, torch.cat(parts, 1).unbind(1), strict=True)), expected)
    state = net.init_state(2)
    mixed = torch.cat([net.forward_steps(x[:, :33], state).logits, x.new_zeros(2, 0, 3)], 1)
    rest = stepped(net, x[:, 33:], state)
    mixed = torch.cat([mixed, *(y.unsqueeze(1) for y in rest.values())], 1)
    assert_same(dict(zip(expected, mixed.unbind(1), strict=True)), expected)


@pytest.mark.parametrize("form", ["stgcn-none", "agcn-none", "str-none", "agcn-compat"])
def test_without_padding_a_stream_is_a_sliding_window(form: str) -> None:
    net = small_net(form, strides=(1,) * len(SIZES["widths"] if "str" not in form else range(5)))
    x = stream(net.window + 20)
    given = stepped(net, x)
    expected = {t: net(x[:, t - net.window + 1 : t + 1]) for t in range(net.window - 1, x.shape[1])}
    assert_same(given, expected)


@pytest.mark.parametrize("form", [form for form in FORMS if "causal" in form])
def test_causal_clips_have_the_outputs_of_every_step(form: str) -> None:
    net, x = small_net(form), stream(40, batch=2)
    logits = net(x)
    assert logits.shape == (2, 10, 3)
    assert net.delay == 0
    assert_same(stepped(net, x), {4 * k: y for k, y in enumerate(logits.unbind(1))})
    later = x.clone()
    later[:, 21:] += 1
    torch.testing.assert_close(net(later)[:, :6], logits[:, :6])


@pytest.mark.long
def test_twenty_thousand_steps() -> None:
    net = small_net("stgcn-causal", widths=(4, 4), strides=(1, 2), persons=1)
    x = stream(20_000, persons=1)
    state = net.init_state(1)
    steps = list(stepped(net, x[:, :10_000], state).values())
    chunks = [net.forward_steps(part, state).logits[0] for part in x[:, 10_000:].split(97, 1)]
    logits = torch.cat([*steps, *chunks])
    assert logits.shape == (10_000, 3)
    assert (logits - net(x)[0]).abs().max() <= 1e-9 * logits.abs().max()
    twin = small_net("stgcn-causal", widths=(4, 4), strides=(1, 2), persons=1).float()
    given = twin.forward_steps(x.float(), twin.init_state(1)).logits[0]
    assert (given - logits).abs().max() <= 1e-5 * logits.abs().max()


@pytest.mark.long
def test_persons_who_come_and_go_change_nothing() -> None:
    for form in (
        "stgcn",
        "stgcn-none",
        "agcn-causal",
        "branches",
        "str-none",
        "stgcn-causal-statistics",
    ):
        net = small_net(form, persons=3)
        x = stream(260, batch=2, persons=3)
        for stream_, person, start, stop in (
            *((0, 1, 0, 80), (1, 1, 0, 130), (0, 2, 60, 240), (1, 2, 0, 250)),
            *((0, 0, 100, 200), (1, 0, 90, 210), (0, 1, 110, 260), (1, 1, 135, 200)),
        ):
            x[stream_, start:stop, person] = 0
        expected = outputs(net, x)
        state = net.init_state(2)
        given, asleep = {}, set()
        for t in range(260):
            out = net.forward_step(x[:, t], state)
            asleep.add(tuple(state.asleep[0].tolist()))
            if out is not None:
                given[t] = out.logits
        assert_same(given, expected)
        assert len(asleep) > 3
        for size in (9, 64):
            state = net.init_state(2)
            parts = [net.forward_steps(part, state).logits for part in x.split(size, 1)]
            assert_same(dict(zip(expected, torch.cat(parts, 1).unbind(1), strict=True)), expected)


@pytest.mark.parametrize(
    "form", ["stgcn", "stgcn-none", "agcn-causal", "stgcn-causal-statistics", "branches"]
)
def test_streams_begin_again_join_and_leave(form: str) -> None:
    net, x = small_net(form), stream(140, batch=3)
    x[0, 10:120, 1] = 0
    x[2, 40:, 1] = 0
    state = net.init_state(2)
    stepped(net, x[:2, :40], state)
    state.reset([1])
    given = stepped(net, x[:2, 40:60], state)
    state = type(state).cat([state, net.init_state(1)])
    given |= {t + 20: y for t, y in stepped(net, x[:, 60:], state).items()}
    first = outputs(net, x[:1])
    again, joined = outputs(net, x[1:2, 40:]), outputs(net, x[2:, 60:])
    for row, expected, start in ((0, first, 40), (1, again, 0), (2, joined, -20)):
        checked = [t for t in given if t + start in expected and t + start >= 0]
        assert len(checked) > 8
        for t in checked:
            if row < len(given[t]):
                assert (given[t][row] - expected[t + start][0]).abs().max() <= 1e-9
    alone = state.take([1])
    more = stream(20)
    one = net.forward_steps(more, alone).logits
    whole = outputs(net, torch.cat([x[1:2, 40:], more], 1))
    assert (one[0, -1] - whole[max(whole)][0]).abs().max() <= 1e-9


@pytest.mark.parametrize("form", ["stgcn", "stgcn-none", "agcn-causal", "branches"])
def test_a_stream_that_joins_sleepers(form: str) -> None:
    net, x = small_net(form), stream(150, batch=2)
    x[0, 8:110, 1] = 0
    state = net.init_state(1)
    stepped(net, x[:1, :60], state)
    assert state.asleep.tolist() == [[0, 1]]
    state = type(state).cat([state, net.init_state(1)])
    given = stepped(net, x[:, 60:], state)
    old, new = outputs(net, x[:1]), outputs(net, x[1:, 60:])
    for t in new:
        assert (given[t][0] - old[t + 60][0]).abs().max() <= 1e-9
        assert (given[t][1] - new[t][0]).abs().max() <= 1e-9


def test_saving_and_cloning_while_somebody_sleeps() -> None:
    for form in ("agcn", "branches-causal", "stgcn-causal-statistics"):
        net, x = small_net(form), stream(80)
        x[:, 20:70, 1] = 0
        state = net.init_state(1)
        stepped(net, x[:, :50], state)
        saved = {k: v.clone() for k, v in state.tensors().items()}
        twins = [state.clone(), copy.deepcopy(state), net.init_state(1)]
        twins[2].load_tensors(saved)
        expected = stepped(net, x[:, 50:], state)
        for twin in twins:
            given = stepped(net, x[:, 50:], twin)
            assert list(given) == list(expected)
            assert all(torch.equal(given[t], expected[t]) for t in given)


def test_reset_of_all_starts_again() -> None:
    net, x = small_net("stgcn"), stream(70)
    x[:, :45, 1] = 0
    state = net.init_state(1)
    stepped(net, x[:, 5:], state)
    state.reset()
    assert_same(stepped(net, x, state), outputs(net, x))


def test_the_fold_follows_the_parameters() -> None:
    net, x = small_net("stgcn-causal"), stream(12)
    state = net.init_state(1)
    stepped(net, x, state)
    state.reset()
    net.train()(x)  # moves the statistics of batch norms
    net.eval()
    assert_same(stepped(net, x, state), outputs(net, x))
    with torch.no_grad():
        net.blocks[1].tcn.bn.running_mean.add_(1)
    assert_same(stepped(net, x), outputs(net, x))
    other = small_net("stgcn-causal", seed=5)
    net.load_state_dict(other.state_dict())
    assert_same(stepped(net, x), outputs(other, x))
    net.load_state_dict(small_net("stgcn-causal", seed=6).state_dict(), assign=True)
    assert_same(stepped(net, x), outputs(small_net("stgcn-causal", seed=6), x))
    exact = stepped(net, x)
    given = stepped(net.float(), x.float())
    assert given[8].dtype == torch.float32
    assert_same({t: y.double() for t, y in given.items()}, exact, atol=1e-5)


def test_stepping_draws_no_random_numbers_and_keeps_no_gradients() -> None:
    net, x = small_net("stgcn-causal"), stream(3)
    before = torch.random.get_rng_state()
    with torch.enable_grad():
        out = net.forward_step(x[:, 0].requires_grad_(), net.init_state(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not out.logits.requires_grad


def test_states_and_folds_outlive_inference_mode() -> None:
    net, x = small_net("stgcn"), stream(60)
    with torch.inference_mode():
        state = net.init_state(1)
        stepped(net, x[:, :30], state)
    later = stepped(net, x[:, 30:], state)
    expected = {t - 30: y for t, y in outputs(net, x).items() if t >= 30}
    assert_same(later, expected)


def test_every_parameter_learns() -> None:
    with torch.enable_grad():
        for form in FORMS:
            net = small_net(form).float().train()
            net(torch.randn(2, 40, 2, 5, 2)).square().sum().backward()
            idle = {k for k, p in net.named_parameters() if p.grad is None}
            unused = ("a_conv", "b_conv") if form == "agcn-compat" else ()
            assert all(any(word in name for word in unused) for name in idle)
            assert bool(idle) == bool(unused)


def test_warmup_ends_when_the_window_is_full() -> None:
    net, x = small_net("stgcn-none"), stream(30)
    state = net.init_state(1)
    warm = []
    for frame in x.unbind(1):
        net.forward_step(frame, state)
        warm.append(net.warmup(state)[0])
    assert warm == [t < net.window - 1 for t in range(30)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "gru"}, "kind 'gru' is not one of stgcn"),
        ({"padding": "full"}, "padding 'full' is not one of same"),
        ({"temporal": "none"}, "temporal 'none' is not one of convolution"),
        ({"kernel": 4}, "kernel 4 has no centre"),
        ({"statistics": True}, "statistics need padding 'causal', not 'same'"),
        ({"widths": (4, 4)}, "2 widths and 4 strides"),
        ({"partition": "near"}, "partition 'near' is not one of in_out"),
        ({"kind": "agcn", "attention": "all"}, "attention 'all' is not frame or clip"),
        ({"kind": "agcn", "compat": "yes"}, "compat 'yes' is not 'continual-skeletons'"),
        ({"kind": "agcn", "widths": (4, 4, 8, 6)}, "width 6 .* not a multiple of 4"),
        ({"kind": "str", "widths": (4, 4, 8, 8)}, "width 8 .* not a multiple of 32"),
        ({"temporal": "branches", "padding": "none"}, "branches need padding same or causal"),
        ({"padding": "none", "kernel": 3}, "come at different steps"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SkeletonNet(3, 5, BONES, 0, 2, **{**SIZES, **options})


def test_attention_over_clips_has_no_stream() -> None:
    net = small_net("agcn", attention="clip")
    with pytest.raises(ValueError, match="cannot be computed frame by frame"):
        net.init_state(1)
    x = stream(1)  # of one frame the two are the same
    same = small_net("agcn")
    torch.testing.assert_close(net(x), same(x))
    longer = stream(30)
    assert (net(longer) - same(longer)).abs().max() > 1e-6


def test_frames_of_another_shape_are_reported() -> None:
    net = small_net("stgcn")
    state = net.init_state(2)
    for x in (stream(1), stream(1, batch=2, persons=1), stream(1, batch=2)[..., :1]):
        with pytest.raises(ValueError, match=r"state for \(2, 2, 5, 2\)"):
            net.forward_step(x[:, 0], state)
        with pytest.raises(ValueError, match=r"state for \(2, 2, 5, 2\)"):
            net.forward_steps(x, state)


@pytest.mark.long
def test_a_model_is_built_without_sympy() -> None:
    """Some operations on the device "meta" load it: a third of a second at each start."""
    code = (
        "import sys; from costream.models.catalogue import load_model\n"
        "load_model('costgcn'); sys.exit('sympy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
