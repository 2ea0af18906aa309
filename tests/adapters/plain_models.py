"""Networks and layers as people write them in plain PyTorch, among them some that only look like a network."""

import torch
from torch import nn
from torch.nn import functional as F

D, H = 12, 40


class Mlp(nn.Module):
    """timm's: fc1, act, drop, norm, fc2, with linear maps or 1×1 convolutions."""

    def __init__(self, act=nn.GELU, norm=nn.Identity, conv=False, d=D, h=H):
        super().__init__()
        self.fc1 = nn.Conv2d(d, h, 1) if conv else nn.Linear(d, h)
        self.act, self.drop1, self.norm = act(), nn.Dropout(0.1), norm(h)
        self.fc2 = nn.Conv2d(h, d, 1) if conv else nn.Linear(h, d)

    def forward(self, x):
        return self.fc2(self.norm(self.drop1(self.act(self.fc1(x)))))


class GluMlp(nn.Module):
    """timm's fused gate, in the first half or the last."""

    def __init__(self, gate_last):
        super().__init__()
        self.fc1, self.act, self.norm, self.fc2 = nn.Linear(D, 2 * H), nn.SiLU(), nn.LayerNorm(H), nn.Linear(H, D)
        self.gate_last = gate_last

    def forward(self, x):
        one, two = self.fc1(x).chunk(2, -1)
        return self.fc2(self.norm(one * self.act(two) if self.gate_last else self.act(one) * two))


class Interleaved(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(D, 2 * H, bias=False), nn.Linear(H, D, bias=False)

    def forward(self, x):
        h = self.wide(x)
        return self.narrow(F.gelu(h[..., 1::2]) * h[..., ::2])


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1_x, self.fc1_g, self.fc2 = nn.Linear(D, H), nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x):
        return self.fc2(F.silu(self.fc1_g(x)) * self.fc1_x(x))


class GlobalResponseNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        size = x.norm(dim=(1, 2), keepdim=True)
        return x + torch.addcmul(self.bias, self.weight, x * (size / (size.mean(-1, keepdim=True) + 1e-6)))


class Attention(nn.Module):
    """Four maps whose widths pair like a network's where ``wide`` is not D."""

    def __init__(self, wide=D):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(*s) for s in ((D, wide), (D, wide), (D, wide), (wide, D)))

    def forward(self, x, mask=None):
        return self.o((self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x))


class Layer(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.attention, self.parts = Attention(), nn.ModuleList(parts)

    def forward(self, x):
        x = x + self.attention(x)
        for part in self.parts:
            x = x + part(x)
        return x


class Inline(nn.Module):
    """A decoder layer with every map in itself: attention's, wider than D, and two networks'."""

    def __init__(self, wide=20):
        super().__init__()
        self.qkv, self.o, self.wide = nn.Linear(D, 3 * wide), nn.Linear(wide, D), wide
        self.up, self.down, self.norm = nn.Linear(D, H), nn.Linear(H, D), nn.LayerNorm(D)
        self.gate, self.up2, self.down2 = nn.Linear(D, 32), nn.Linear(D, 32), nn.Linear(32, D)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).split(self.wide, -1)
        x = x + self.o((q @ k.mT).softmax(-1) @ v)
        x = x + self.down(F.relu(self.up(self.norm(x))))
        return x + self.down2(F.silu(self.gate(x)) * self.up2(x))


class Mixer(nn.Module):
    """MLP-Mixer's layer: the first network acts on the tokens."""

    def __init__(self, tokens=9):
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(D), Mlp(d=tokens, h=24), Mlp()

    def forward(self, x):
        x = x + self.tokens(self.norm(x).mT).mT
        return x + self.channels(self.norm(x))


class Raw(nn.Module):
    """A network of parameters without modules."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(H, D)), nn.Parameter(torch.randn(D, H))

    def forward(self, x):
        return F.linear(F.relu(F.linear(x, self.w1)), self.w2)


class LoRA(nn.Module):
    """PEFT's way of wrapping a linear map."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base_layer, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.lora_A = nn.ModuleDict({"default": nn.Linear(self.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, self.out_features, bias=False)})

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def with_lora():
    block = Mlp()
    block.fc1, block.fc2 = LoRA(block.fc1), LoRA(block.fc2)
    return block


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(D, 32), nn.GELU(), nn.Linear(32, 32)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, 4), nn.Linear(4, D)

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean(1, keepdim=True)))))


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(D, H), nn.Linear(H, H), nn.Linear(H, D)])

    def forward(self, x):
        for entry in self.maps[:-1]:
            x = F.relu(entry(x))
        return self.maps[-1](x)


class Mamba(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.conv = nn.Linear(D, 2 * H), nn.Conv1d(H, H, 4, groups=H, padding=3)
        self.read, self.step, self.out = nn.Linear(H, 9), nn.Linear(1, H), nn.Linear(H, D)
        self.decay, self.act = nn.Parameter(torch.randn(H, 4)), nn.SiLU()

    def forward(self, x):
        h, gate = self.into(x).chunk(2, -1)
        h = self.act(self.conv(h.mT)[..., : x.shape[1]].mT)
        step, b, c = self.read(h).split([1, 4, 4], -1)
        step, state, ys = F.softplus(self.step(step)), 0, []
        for t in range(x.shape[1]):
            decay = (-step[:, t, :, None] * self.decay.exp()).exp()
            state = state * decay + step[:, t, :, None] * b[:, t, None] * h[:, t, :, None]
            ys.append((state * c[:, t, None]).sum(-1))
        return self.out(torch.stack(ys, 1) * self.act(gate))


class Mixture(nn.Module):
    """A router and experts in a list, each token met by ``top_k`` of them."""

    def __init__(self, experts=4, top_k=2):
        super().__init__()
        self.router, self.top_k = nn.Linear(D, experts, bias=False), top_k
        self.experts = nn.ModuleList(Mlp() for _ in range(experts))

    def forward(self, x):
        flat = x.reshape(-1, D)
        weights, chosen = self.router(flat).softmax(-1).topk(self.top_k, -1)
        y = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            y.index_add_(0, rows, expert(flat[rows]) * weights[rows, place, None])
        return y.reshape(x.shape)


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.table, self.layers, self.head = nn.Embedding(7, D), nn.ModuleList(layers), nn.Linear(D, 7)
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
