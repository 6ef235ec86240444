"""Linears of a transformers model in 8 bits, by quantising and dequantising: what `matmul: fp8` is compared with.

A tensor x becomes step · e4m3(x / step), where step = max|x| / 448; gradients of outputs are e5m2, with 57344 for 448 (FP8, arXiv 2209.05433). The q, k
and v of a layer count as one matrix, and so do gate and up. All products are fp32, of the values that come of that.
"""

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def rounded(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    step = x.float().abs().max().clamp(min=1e-12) / LARGEST[kind]
    return (x.float() / step).clamp(-LARGEST[kind], LARGEST[kind]).to(kind).float() * step


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        flat = x.flatten(0, -2)
        ctx.x, ctx.w = rounded(flat, torch.float8_e4m3fn), rounded(w, torch.float8_e4m3fn)
        ctx.dtype = x.dtype
        return (ctx.x @ ctx.w.T).view(*x.shape[:-1], -1).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        d = rounded(dy.flatten(0, -2), torch.float8_e5m2)
        return (d @ ctx.w).view(*dy.shape[:-1], -1).to(ctx.dtype), (d.T @ ctx.x).to(ctx.dtype)


class Joined(torch.nn.Module):
    """Linears of one input: computed when the first is called, for the others, too."""

    def __init__(self, linears: list[torch.nn.Linear]):
        super().__init__()
        self.linears, self.results = linears, []

    def part(self, number: int):
        def forward(x):
            if number == 0:
                y = Product.apply(x, torch.cat([one.weight for one in self.linears]))
                sizes = [one.out_features for one in self.linears]
                self.results = list(y.split(sizes, dim=-1))
            y, bias = self.results[number], self.linears[number].bias
            return y if bias is None else y + bias

        return forward


def in_fp8(model):
    """Has the linears of the layers compute so; parameters keep their names."""
    for layer in model.model.layers:
        of, mlp = layer.self_attn, layer.mlp
        groups = [[of.q_proj, of.k_proj, of.v_proj], [of.o_proj]]
        groups += [[mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]
        for linears in groups:
            joined = Joined(linears)
            for number, linear in enumerate(linears):
                linear.forward = joined.part(number)
    return model
