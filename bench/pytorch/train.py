#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains models whose sizes vary from step to step, on PyTorch's allocator and on ours.

    train.py [--out FILE] [--models gpt2,gnn,resnet50] [--steps N] [--rounds N]
             [--allocators pytorch,expandable,elastic] [--processes N]

Processes of their own for each model and allocator, in turn, so that what else happens on
the machine meets all; every round draws the same sizes. Prints a table, and writes JSON
of each process with each loss. The rate is the best round's, but for the first of a
process, which is in the column before. `calls`, `driver` and `waits` are those of a
process's last round.
Losses must be the same in all processes. Exit code 1: a run failed or losses differ.
`hbmalloc` (src/interop/python) must be importable.
"""
import argparse
import json
import os
import subprocess
import sys
import time

ALLOCATORS = {  # PYTORCH_ALLOC_CONF, HBMALLOC_POLICY
    "pytorch": ("", None),
    "expandable": ("expandable_segments:True", None),
    "elastic": ("", "elastic:memory_fraction=1,slack=0.04,reuse_wait=100ms"),  # the default
    "elastic_no_wait": ("", "elastic:memory_fraction=1"),
    "elastic_slack_0.05": ("", "elastic:memory_fraction=1,reuse_wait=100ms"),
    "elastic_slack_0.25": ("", "elastic:memory_fraction=1,slack=0.25"),
    "elastic_slack_inf": ("", "elastic:memory_fraction=1,slack=inf"),
    "on_demand": ("", "on_demand:memory_fraction=1"),
}


def gpt2(torch, draw):
    """124 million parameters; 8 sequences of 128 to 1,024 tokens a step."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    nn = torch.nn
    functional = nn.functional

    class Block(nn.Module):
        def __init__(self, width=768, heads=12):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            batch, length, width = x.shape
            q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
            self.blocks = nn.ModuleList(Block() for _ in range(12))
            self.norm = nn.LayerNorm(768)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.tokens.weight.T

    model = Model().cuda()

    def step(_):
        tokens = torch.randint(50257, (8, draw(128, 1024) + 1), generator=draw.generator).cuda()
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    return model, step


def gnn(torch, draw):
    """A GCN and a GAT over graphs of 20,000 to 100,000 nodes with 8 edges each."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, inputs, outputs, heads=0):
            super().__init__()
            self.heads = heads
            self.linear = nn.Linear(inputs, outputs)
            if heads:
                self.score = nn.Parameter(torch.randn(2, heads, outputs // heads) / 16)

        def forward(self, x, source, target):
            x = self.linear(x)
            if not self.heads:
                degree = torch.ones_like(x[:, 0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
                return torch.zeros_like(x).index_add(0, target, x[source]) / degree[:, None]
            h = x.view(len(x), self.heads, -1)
            score = nn.functional.leaky_relu(
                (h * self.score[0]).sum(-1)[source] + (h * self.score[1]).sum(-1)[target], 0.2)
            weight = (score - score.max()).exp()
            total = torch.full_like(h[:, :, 0], 1e-9).index_add(0, target, weight)
            weight = weight / total[target]
            return torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None]).flatten(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(64, 256), Layer(256, 256), Layer(64, 256, 4), Layer(256, 256, 4)])
            self.out = nn.Linear(512, 40)

        def forward(self, x, source, target):
            a = self.layers[1](self.layers[0](x, source, target).relu(), source, target)
            b = self.layers[3](self.layers[2](x, source, target).relu(), source, target)
            return self.out(torch.cat((a, b), 1).relu())

    model = Model().cuda()

    def step(_):
        nodes = draw(20_000, 100_000)
        seed = torch.Generator("cuda").manual_seed(nodes)
        x = torch.randn(nodes, 64, generator=seed, device="cuda")
        edges = torch.randint(nodes, (2, 8 * nodes), generator=seed, device="cuda")
        labels = torch.randint(40, (nodes,), generator=seed, device="cuda")
        return torch.nn.functional.cross_entropy(model(x, edges[0], edges[1]).float(), labels)
    return model, step


def resnet50(torch, draw):
    """ResNet-50 over 16 to 128 images of 224 x 224 pixels."""
    nn = torch.nn

    def convolution(inputs, outputs, size, stride=1):
        return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.body = nn.Sequential(*convolution(inputs, width, 1), nn.ReLU(), *convolution(width, width, 3, stride),
                                      nn.ReLU(), *convolution(width, 4 * width, 1))
            same = stride == 1 and inputs == 4 * width
            self.skip = nn.Identity() if same else nn.Sequential(*convolution(inputs, 4 * width, 1, stride))

        def forward(self, x):
            return (self.body(x) + self.skip(x)).relu()

    layers = convolution(3, 64, 7, 2) + [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).cuda()

    def step(_):
        batch = draw(16, 128)
        seed = torch.Generator("cuda").manual_seed(batch)
        images = torch.randn(batch, 3, 224, 224, generator=seed, device="cuda")
        labels = torch.randint(1000, (batch,), generator=seed, device="cuda")
        return nn.functional.cross_entropy(model(images).float(), labels)
    return model, step


MODELS = {"gpt2": gpt2, "gnn": gnn, "resnet50": resnet50}


class Draw:
    """Sizes, from a generator of their own."""

    def __init__(self, torch):
        self.generator = torch.Generator()
        self._randint = torch.randint

    def __call__(self, low, high):
        return int(self._randint(low, high + 1, (), generator=self.generator))


def figures(torch, ours):
    """Since the start: bytes, and calls of the driver for memory."""
    if ours:
        stats = ours.stats()
        return {"live": stats["peak_requested_bytes"], "pool": stats["peak_pool_bytes"],
                "requests": stats["num_allocs"], "driver_calls": stats["driver_calls"],
                "driver_s": stats["driver_nanoseconds"] / 1e9, "failures": stats["num_failures"],
                "waits": stats["num_waits"], "wait_s": stats["wait_nanoseconds"] / 1e9}
    stats = torch.cuda.memory_stats()
    return {"live": stats["requested_bytes.all.peak"], "pool": stats["reserved_bytes.all.peak"],
            "requests": stats["allocation.all.allocated"],
            "driver_calls": stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)}


def train(model_name, allocator, steps, rounds):
    import torch
    ours = None
    if ALLOCATORS[allocator][1]:
        import hbmalloc.torch
        ours = hbmalloc.torch
        ours.install()
    torch.manual_seed(0)
    # Flash attention's backward pass is deterministic only without warn_only, which
    # layers of the others need.
    torch.use_deterministic_algorithms(True, warn_only=model_name != "gpt2")
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = True
    draw = Draw(torch)
    model, step = MODELS[model_name](torch, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, seconds, rounds_figures = [], [], [figures(torch, ours)]
    for _ in range(rounds):
        draw.generator.manual_seed(7)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for index in range(steps):
            with torch.autocast("cuda", torch.bfloat16, enabled=model_name != "gnn"):
                loss = step(index)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        rounds_figures.append(figures(torch, ours))
    free, total = torch.cuda.mem_get_info()
    return {"model": model_name, "allocator": allocator, "steps": steps, "round_s": seconds,
            "losses": [value.item() for value in losses], **rounds_figures[-1],
            "after_rounds": rounds_figures,
            "device_used_end": total - free, "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
            "policy": ALLOCATORS[allocator][1]}


def run(model, allocator, arguments):
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8", PYTHONWARNINGS="ignore")
    configuration, policy = ALLOCATORS[allocator]
    environment.pop("HBMALLOC_POLICY", None)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    if configuration:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = configuration
    if policy:
        environment["HBMALLOC_POLICY"] = policy
    done = subprocess.run([sys.executable, __file__, "--one", model, allocator, "--steps", str(arguments.steps),
                           "--rounds", str(arguments.rounds)], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"FAILED {model} on {allocator}:\n{done.stderr[-1500:]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def merge(results):
    """Of the processes of one model and allocator: all warm rounds, the highest peaks."""
    merged = dict(results[-1])
    merged["first_s"] = min(result["round_s"][0] for result in results)
    merged["warm_s"] = [s for result in results for s in result["round_s"][1:]]
    for key in ("live", "pool"):
        merged[key] = max(result[key] for result in results)
    merged["all_losses"] = [result["losses"] for result in results]
    return merged


def row(result, base):
    rate, base_rate = (r["steps"] / min(r["warm_s"]) for r in (result, base))
    first = result["steps"] / result["first_s"]
    same = "same" if is_same(result, base) else "DIFFER"
    before, after = result["after_rounds"][-2:]
    calls, driver, waits, wait = (after.get(key, 0) - before.get(key, 0)
                                  for key in ("driver_calls", "driver_s", "waits", "wait_s"))
    return (f"{result['model']:9} {result['allocator']:19} {result['live'] / 2**30:9.3f} {result['pool'] / 2**30:9.3f} "
            f"{result['pool'] / result['live']:9.3f} {first:8.2f} {rate:8.2f} {rate / base_rate:9.3f} "
            f"{calls:7} {1e3 * driver:7.1f}ms {waits:5} {1e3 * wait:7.1f}ms  {same}")


def is_same(result, base):
    return all(losses == base["losses"] for losses in result["all_losses"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="")
    parser.add_argument("--models", default="gpt2,gnn,resnet50")
    parser.add_argument("--allocators", default="pytorch,expandable,elastic")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(train(*arguments.one, arguments.steps, arguments.rounds)))
        return
    results, failed = [], False
    print("model     allocator            live GiB  pool GiB pool/live 1st st/s   st/s of pytorch   calls    driver"
          " waits    waited  losses", flush=True)
    for model in arguments.models.split(","):
        names = arguments.allocators.split(",")
        runs = {name: [] for name in names}
        for name in names * arguments.processes:
            result = run(model, name, arguments)
            failed |= result is None
            if result is None:
                continue
            runs[name].append(result)
            if arguments.out:
                with open(arguments.out, "w") as file:
                    json.dump(results + [one for same in runs.values() for one in same], file)
        merged = [merge(runs[name]) for name in names if runs[name]]
        for result in merged:
            failed |= not is_same(result, merged[0])
            print(row(result, merged[0]), flush=True)
        results += [one for same in runs.values() for one in same]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
