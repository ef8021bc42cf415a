"""Graph convolutions over the joints of a skeleton: of ST-GCN, and of AGCN with attention.

A graph is a tensor A [3, V, V] of three partitions: joint w gets ``sum_v x[v] A[k, v, w]`` from
partition k. Features come last: x [N, T, V, C] holds T frames of N persons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PARTITIONS = ("in_out", "distance")
COMPATIBLE = "continual-skeletons"


def adjacency(
    joints: int, bones: Sequence[Sequence[int]], centre: int, partition: str = "in_out"
) -> Tensor:
    """Return the three partitions [3, V, V] of a skeleton, float32.

    ``bones``: (child, parent) pairs that all lead to ``centre``. ``partition``: "in_out" (self,
    towards the parent, towards the child: 2s-AGCN, continual-skeletons, pyskl's "spatial"), or
    "distance" (self or equally far from the centre, farther, nearer: ST-GCN, pyskl's
    "stgcn_spatial"). Each column, the weights of one receiving joint, is divided by its sum.
    """
    if partition not in PARTITIONS:
        raise ValueError(f"partition {partition!r} is not one of {', '.join(PARTITIONS)}")
    wrong = [j for j in (*(end for bone in bones for end in bone), centre) if not 0 <= j < joints]
    if wrong:
        raise ValueError(f"joint {wrong[0]} of bones or centre is not one of {joints} joints")
    if partition == "distance":
        return _by_distance(joints, bones, centre)
    inward = torch.zeros(joints, joints, dtype=torch.float64)
    for child, parent in bones:
        inward[parent, child] = 1
    itself = torch.eye(joints, dtype=torch.float64)
    return torch.stack([itself, _divide_columns(inward), _divide_columns(inward.T)]).float()


def _by_distance(joints: int, bones: Sequence[Sequence[int]], centre: int) -> Tensor:
    """Return ST-GCN's partitions.

    As in its code, joints two bones from the centre and farther all count as equally far, so most
    bones of the limbs are in partition 1 both ways.
    """
    linked = torch.eye(joints, dtype=torch.float64)
    for a, b in bones:
        linked[a, b] = linked[b, a] = 1
    share = _divide_columns(linked)
    hops = torch.where(linked[centre] > 0, 1, 2)
    hops[centre] = 0
    itself = torch.eye(joints, dtype=torch.bool)
    nearer = hops[:, None] < hops[None, :]  # [j, i]: joint j is nearer the centre than joint i
    masks = torch.stack([itself, ~itself & ~nearer, ~itself & nearer])
    return (share * masks).float()


def _divide_columns(links: Tensor) -> Tensor:
    """Divide each column by its sum; columns without a link stay zero."""
    return links / links.sum(0).clamp(min=1)


def mix_joints(x: Tensor, graph: Tensor) -> Tensor:
    """Return [..., V, 3 C], the sum that each joint receives in each of the partitions.

    ``x``: [..., V, C]; ``graph``: [..., 3, V, V], with leading dimensions that broadcast.
    """
    mixed = torch.matmul(_by_receiver(graph), x)
    return torch.unflatten(mixed, -2, (-1, graph.shape[-3])).flatten(-2)


def normalise(norm: nn.Module, x: Tensor) -> Tensor:
    """Return ``norm`` (a BatchNorm2d) over the features of ``x`` [N, T, V, C]."""
    return cast(Tensor, norm(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


def scale_and_shift(norm: nn.modules.batchnorm._BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the scale and the shift of a batch norm in evaluation mode."""
    weight, mean, var = norm.weight.detach(), norm.running_mean, norm.running_var
    scale = weight * torch.rsqrt(cast(Tensor, var) + norm.eps)
    return scale, norm.bias.detach() - cast(Tensor, mean) * scale


class GraphConvolution(nn.Module):
    """ST-GCN's spatial unit: ``relu(BN(sum_k conv_k(x (A_k * graph_attn_k))) + r(x))``.

    Yan et al., "Spatial temporal graph convolutional networks" (AAAI 2018), in the form of
    Hedegaard et al., "Continual spatio-temporal graph convolutional networks" (2023).

    Args:
        in_width, out_width: C, O. ``graph``: A [3, V, V], stored as a buffer; ``graph_attn`` is
            learned.
        conv_first: convolutions come before the mixing of joints, as in the original ST-GCN
            and pyskl: equivalent except for the biases, which then are mixed too.
        residual: r is the identity, or a 1x1 convolution with BN where widths differ; False:
            there is none.
    """

    A: Tensor

    def __init__(
        self,
        in_width: int,
        out_width: int,
        graph: Tensor,
        *,
        conv_first: bool = False,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.in_width, self.out_width, self.joints = in_width, out_width, graph.shape[1]
        self.conv_first, self.residual = conv_first, residual
        self.graph_attn = nn.Parameter(torch.ones(graph.shape))
        self.register_buffer("A", graph.clone())  # a copy for each unit: weights may differ
        self.g_conv = nn.ModuleList(nn.Conv2d(in_width, out_width, 1) for _ in graph)
        if residual and in_width != out_width:
            self.gcn_residual = nn.Sequential(
                nn.Conv2d(in_width, out_width, 1), nn.BatchNorm2d(out_width)
            )
        self.bn = nn.BatchNorm2d(out_width)

    @property
    def convolves_residual(self) -> bool:
        """Whether the residual has a 1x1 convolution."""
        return hasattr(self, "gcn_residual")

    def resize(self) -> None:
        """Take the widths from the weights."""
        weight = cast(Tensor, self.g_conv[0].weight)
        self.out_width, self.in_width = weight.shape[:2]

    @property
    def _beside(self) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
        conv, norm = self.gcn_residual
        return cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm)

    def graph(self) -> Tensor:
        """Return the graph [3, V, V] that all frames share."""
        return self.A * self.graph_attn

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, V, O] for a clip ``x`` [N, T, V, C]."""
        return self._finish(x, self.graph())

    def _finish(self, x: Tensor, graph: Tensor) -> Tensor:
        y = normalise(self.bn, F.linear(mix_joints(x, graph), self._weight()) + self._bias(graph))
        if self.convolves_residual:
            conv, norm = self._beside
            y = y + normalise(norm, F.linear(x, conv.weight.flatten(1), conv.bias))
        elif self.residual:
            y = y + x
        return F.relu(y)

    def _weight(self) -> Tensor:
        """Return the matrix [O, 3 C] of all partitions."""
        return torch.cat([cast(Tensor, conv.weight).flatten(1) for conv in self.g_conv], 1)

    def _bias(self, graph: Tensor) -> Tensor:
        """Return [O], or [V, O] when convolutions act first."""
        biases = torch.stack([cast(Tensor, conv.bias) for conv in self.g_conv])
        return graph.sum(-2).transpose(-1, -2) @ biases if self.conv_first else biases.sum(0)

    def fold(self) -> FoldedGraphConvolution:
        """Return the unit with everything that is the same for all frames precomputed."""
        graph = self.graph().detach()
        products = self._fold_products(graph)
        if products.beside is not None:  # one more partition, in which each joint is alone
            graph = torch.cat([graph, torch.eye(self.joints).to(graph)[None]])
            weight = torch.cat([products.weight.T, products.beside.T], 1).T
            products = FoldedProducts(weight, products.bias, None, False)
        return FoldedGraphConvolution(_by_receiver(graph), products)

    def _fold_products(self, graph: Tensor) -> FoldedProducts:
        scale, shift = scale_and_shift(self.bn)
        weight = (self._weight().detach() * scale[:, None]).T
        bias = self._bias(graph).detach() * scale + shift
        if not self.convolves_residual:
            return FoldedProducts(weight, bias, None, self.residual)
        conv, norm = self._beside
        beside, own = fold_convolution(conv, *scale_and_shift(norm))
        return FoldedProducts(weight, bias + own, beside, False)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame of one person."""
        c, o, v = self.in_width, self.out_width, self.joints
        return 3 * v * v * c + v * o * c * (3 + self.convolves_residual)


class AdaptiveGraphConvolution(GraphConvolution):
    """AGCN's spatial unit: the graph is ``A_k + graph_attn_k + S_k``, S_k from the joints.

    ``S_k[v, w]`` is the softmax over v of ``a_k(x)[v] . b_k(x)[w] / C_e``, C_e = O / 4.
    Shi et al., "Two-stream adaptive graph convolutional networks" (CVPR 2019).

    Args:
        attention: "frame": S_k of every frame by itself, which a stream requires;
            "clip": one S_k for all frames, the products averaged over the clip.
        compat: "continual-skeletons" for the published weights of AGCN* and CoAGCN*, whose code
            does not mix joints: partition k gets ``x[v] (1 + sum_w (A_k + graph_attn_k)[v, w])``.
        in_width, out_width, graph: see ``GraphConvolution``.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        graph: Tensor,
        *,
        attention: str = "frame",
        compat: str | None = None,
    ) -> None:
        super().__init__(in_width, out_width, graph)
        if attention not in ("frame", "clip"):
            raise ValueError(f"attention {attention!r} is not frame or clip")
        if compat not in (None, COMPATIBLE):
            raise ValueError(f"compat {compat!r} is not {COMPATIBLE!r}")
        if out_width % 4:
            raise ValueError(f"width {out_width} of adaptive graphs is not a multiple of 4")
        self.attention, self.compat, self.key_width = attention, compat, out_width // 4
        nn.init.constant_(self.graph_attn, 1e-6)
        self.a_conv = nn.ModuleList(nn.Conv2d(in_width, self.key_width, 1) for _ in graph)
        self.b_conv = nn.ModuleList(nn.Conv2d(in_width, self.key_width, 1) for _ in graph)

    def graph(self) -> Tensor:
        """Return the graph [3, V, V] that all frames share."""
        graph = self.A + self.graph_attn
        return graph if self.compat is None else torch.diag_embed(1 + graph.sum(-1))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, V, O] for a clip ``x`` [N, T, V, C]."""
        return self._finish(x, self.graph() if self.compat else self.graph() + self._attend(x))

    def _attend(self, x: Tensor) -> Tensor:
        """Return S [N, T, 3, V, V], or [N, 1, 3, V, V] of the whole clip."""
        a, b = (self._keys(convs, x) for convs in (self.a_conv, self.b_conv))
        logits = torch.matmul(a, b.transpose(-1, -2)) / self.key_width
        if self.attention == "clip":
            logits = logits.mean(1, keepdim=True)
        return logits.softmax(-2)

    def _keys(self, convs: nn.Module, x: Tensor) -> Tensor:
        """Return [N, T, 3, V, C_e]."""
        weight, bias = _stack(cast(nn.ModuleList, convs))
        keys = torch.unflatten(F.linear(x, weight, bias), -1, (-1, self.key_width))
        return keys.transpose(-2, -3)

    def fold(self) -> FoldedGraphConvolution:
        """Return the unit with everything that is the same for all frames precomputed.

        Raises ValueError when the graph depends on the whole clip.
        """
        if self.compat is not None:
            return super().fold()
        if self.attention == "clip":
            raise ValueError("attention over the clip cannot be computed frame by frame")
        graph = self.graph().detach()
        (a, a_bias), (b, b_bias) = _stack(self.a_conv), _stack(self.b_conv)
        keys = torch.cat([a / self.key_width, b]).detach().T.contiguous()
        bias = torch.cat([a_bias / self.key_width, b_bias]).detach()
        products = self._fold_products(graph)
        return FoldedAdaptive(_by_receiver(graph), products, keys, bias)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame of one person."""
        if self.compat is not None:
            return super().count_macs()
        keys = 6 * self.joints * self.in_width * self.key_width
        return super().count_macs() + keys + 3 * self.joints**2 * self.key_width


@dataclass(frozen=True)
class FoldedProducts:
    """Products after the mixing of joints: one, or two, with batch norms folded in."""

    weight: Tensor  # [P C, O]
    bias: Tensor  # [O], or [V, O]
    beside: Tensor | None  # [C, O], the residual's convolution
    adds_input: bool

    def __call__(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Return the ReLU [N, V, O] for mixed joints [N, P V, C] of frames ``x`` [N, V, C]."""
        count, joints, width = x.shape
        rows, own = mixed.view(count * joints, -1), x.reshape(count * joints, width)
        y = torch.addmm(own, rows, self.weight) if self.adds_input else rows @ self.weight
        if self.beside is not None:
            y.addmm_(own, self.beside)
        return y.view(count, joints, -1).add_(self.bias).relu_()


@dataclass(frozen=True)
class FoldedGraphConvolution:
    """A ``GraphConvolution`` in evaluation, for frames [N, V, C]; no gradients."""

    graph: Tensor  # [P V, V], rows (w, k)
    products: FoldedProducts

    def matrices(self) -> list[Tensor]:
        """Return the matrices [C, O] by which the rows of all joints are multiplied."""
        beside = self.products.beside
        return [self.products.weight, *([] if beside is None else [beside])]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output [N, V, O]."""
        return self.products(torch.bmm(self.graph.expand(x.shape[0], -1, -1), x), x)


@dataclass(frozen=True)
class FoldedAdaptive(FoldedGraphConvolution):
    """An ``AdaptiveGraphConvolution`` in evaluation."""

    keys: Tensor  # [C, 6 C_e]: a / C_e of all partitions, then b
    keys_bias: Tensor

    def matrices(self) -> list[Tensor]:
        """Return the matrices [C, O] by which the rows of all joints are multiplied."""
        return [self.keys, *super().matrices()]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output [N, V, O]."""
        count, joints = x.shape[:2]
        keys = torch.addmm(self.keys_bias, x.flatten(0, 1), self.keys)
        a, b = keys.view(count, joints, 2, 3, -1).permute(2, 0, 3, 1, 4).flatten(1, 2)
        attention = torch.bmm(b, a.transpose(1, 2)).softmax(-1)  # [N 3, w, v]
        by_receiver = attention.view(count, 3, joints, joints).transpose(1, 2).flatten(1, 2)
        return self.products(torch.bmm(by_receiver + self.graph, x), x)


def fold_convolution(
    conv: nn.Conv2d, scale: Tensor | None = None, shift: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return a 1x1 convolution, scaled and shifted, as a matrix [C, O] and a bias [O]."""
    weight, bias = conv.weight.detach().flatten(1).T, cast(Tensor, conv.bias).detach()
    if scale is None:
        return weight.contiguous(), bias + shift
    return (weight.T * scale[:, None]).T, bias * scale + shift


def _by_receiver(graph: Tensor) -> Tensor:
    """Return a graph [..., 3, V, V] as the matrices [..., 3 V, V] with rows (w, k)."""
    return graph.movedim(-1, -3).flatten(-3, -2).contiguous()


def _stack(convs: nn.ModuleList) -> tuple[Tensor, Tensor]:
    """Return the weights [n O, C] and biases [n O] of 1x1 convolutions."""
    weights = [cast(Tensor, conv.weight).flatten(1) for conv in convs]
    return torch.cat(weights), torch.cat([cast(Tensor, conv.bias) for conv in convs])


# Attention among the joints of a frame, the spatial unit of S-TR.


HEADS = 8


class SpatialAttention(nn.Module):
    """S-TR's spatial unit: ``relu(BN(attention over joints + x))``, each frame by itself.

    The batch norm has separate parameters for each joint; queries and keys are O / 4 wide, values
    O wide, in 8 heads of consecutive features; the residual, without norm, exists if widths agree.
    Plizzari et al., "Spatial temporal transformer network" (ICPR 2021).

    Args:
        in_width, out_width: C, and O, a multiple of 32. ``joints``: V.
    """

    def __init__(self, in_width: int, out_width: int, joints: int) -> None:
        super().__init__()
        if out_width % (4 * HEADS):
            raise ValueError(f"width {out_width} of attention is not a multiple of {4 * HEADS}")
        self.in_width, self.out_width, self.joints = in_width, out_width, joints
        self.key_width = out_width // 4
        self.adds_input = in_width == out_width
        self.data_bn = nn.BatchNorm1d(in_width * joints)
        self.attention_conv = nn.ModuleDict(
            {
                "qkv_conv": nn.Conv2d(in_width, out_width + 2 * self.key_width, 1),
                "attn_out": nn.Conv2d(out_width, out_width, 1),
            }
        )
        self.bn = nn.BatchNorm2d(out_width)

    @property
    def _convolutions(self) -> tuple[nn.Conv2d, nn.Conv2d]:
        first, last = (self.attention_conv[name] for name in ("qkv_conv", "attn_out"))
        return cast(nn.Conv2d, first), cast(nn.Conv2d, last)

    def resize(self) -> None:
        """Take the widths from the weights; that of the heads stays."""
        first, last = self._convolutions
        self.in_width, self.out_width = first.weight.shape[1], len(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, V, O] for a clip ``x`` [N, T, V, C]."""
        first, last = self._convolutions
        rows = self.data_bn(x.transpose(2, 3).flatten(2).flatten(0, 1))  # features (c, v)
        frames = torch.unflatten(rows, 1, (-1, self.joints)).transpose(1, 2)
        qkv = F.linear(frames, first.weight.flatten(1), first.bias)
        scale = (self.key_width // HEADS) ** -0.5
        attended = _attend(qkv, self.key_width, scale)
        attended = torch.unflatten(attended, 0, (x.shape[0], x.shape[1]))
        y = F.linear(attended, last.weight.flatten(1), last.bias)
        return F.relu(normalise(self.bn, y + x if self.adds_input else y))

    def fold(self) -> FoldedAttention:
        """Return the unit with everything that is the same for all frames precomputed."""
        first, last = self._convolutions
        scale, shift = scale_and_shift(self.data_bn)
        own = (scale.view(-1, self.joints).T, shift.view(-1, self.joints).T)  # [V, C]
        ones = torch.ones_like(cast(Tensor, first.bias))
        ones[: self.key_width] = (self.key_width // HEADS) ** -0.5
        qkv, qkv_bias = fold_convolution(first, ones)
        scale, shift = scale_and_shift(self.bn)
        out, out_bias = fold_convolution(last, scale, shift)
        skip = scale if self.adds_input else None
        norm = own[0].contiguous(), own[1].contiguous()
        return FoldedAttention(*norm, qkv, qkv_bias, out, out_bias, skip, self.key_width)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame of one person."""
        v, c, o, e = self.joints, self.in_width, self.out_width, self.key_width
        inner = len(self._convolutions[0].weight) - 2 * e  # width of the values
        return v * c * (inner + 2 * e) + v * v * (e + inner) + v * inner * o


@dataclass(frozen=True)
class FoldedAttention:
    """A ``SpatialAttention`` in evaluation, for frames [N, V, C]; no gradients."""

    scale: Tensor  # [V, C]
    shift: Tensor  # [V, C]
    qkv: Tensor  # [C, 1.5 O], queries scaled
    qkv_bias: Tensor
    out: Tensor  # [O, O]
    out_bias: Tensor
    skip: Tensor | None  # [O], factor of the input that is added
    key_width: int

    def matrices(self) -> list[Tensor]:
        """Return the matrices [C, O] by which the rows of all joints are multiplied."""
        return [self.qkv, self.out]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output [N, V, O]."""
        rows = torch.addcmul(self.shift, x, self.scale).flatten(0, 1)
        qkv = torch.addmm(self.qkv_bias, rows, self.qkv)
        attended = _attend(torch.unflatten(qkv, 0, x.shape[:2]), self.key_width, None)
        y = torch.addmm(self.out_bias, attended.flatten(0, 1), self.out)
        y = torch.unflatten(y, 0, x.shape[:2])
        return (y if self.skip is None else y.addcmul_(x, self.skip)).relu_()


def _attend(qkv: Tensor, key_width: int, scale: float | None) -> Tensor:
    """Return the attention [N, V, O] for queries, keys and values [N, V, 1.5 O]."""
    q, k, v = torch.split(qkv, [key_width, key_width, qkv.shape[-1] - 2 * key_width], -1)
    heads = [torch.unflatten(t, -1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v)]
    q = heads[0] if scale is None else heads[0] * scale
    weights = torch.matmul(q, heads[1].transpose(2, 3)).softmax(-1)
    return torch.matmul(weights, heads[2]).transpose(1, 2).flatten(2)
