#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, CuPy and Numba on hbmalloc, checked on a GPU.

    pytorch_test.py [CASE...]

Each case is a process of its own. Prints ok, FAILED or skipped; exit code 1 if one
failed. `hbmalloc` (src/interop/python) must be importable.
"""
import os
import subprocess
import sys


def installed():
    import torch
    import hbmalloc.torch
    hbmalloc.torch.install()
    return torch, hbmalloc.torch


def case_autograd_matches():
    torch, ours = installed()
    torch.manual_seed(1)
    w = torch.randn(256, 256, dtype=torch.float64, requires_grad=True)
    x = torch.randn(64, 256, dtype=torch.float64)
    (x @ w).tanh().sum().backward()
    gpu = w.detach().cuda().requires_grad_()
    (x.cuda() @ gpu).tanh().sum().backward()
    assert torch.allclose(w.grad, gpu.grad.cpu())
    stats = ours.stats()
    assert stats["num_allocs"] > 0 and stats["requested_bytes"] > 0, stats


def case_record_stream():
    """A block used on another stream is not given out before that stream's work is done."""
    torch, _ = installed()
    side = torch.cuda.Stream()
    for _ in range(20):
        source = torch.full((1 << 22,), 1.0, device="cuda")
        copy = torch.empty_like(source)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copy.copy_(source)
        copy.record_stream(side)
        source.record_stream(side)
        del source
        others = [torch.full((1 << 22,), 2.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        assert copy.min().item() == copy.max().item() == 1.0
        del others, copy


def case_cuda_graph():
    """Replays read and write what the capture did, whatever is allocated meanwhile."""
    torch, _ = installed()
    x = torch.zeros(1 << 20, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        (x * 2 + 1).relu()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        temporary = x * 2
        y = (temporary + 1).relu()
        del temporary
    for value in range(5):
        junk = [torch.full((1 << 20,), -7.0, device="cuda") for _ in range(8)]
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert y.min().item() == y.max().item() == 2 * value + 1
        assert all(piece.max().item() == -7 for piece in junk)
        del junk
    del graph, y
    torch.cuda.synchronize()


def case_two_graphs_share_a_pool():
    torch, _ = installed()
    x = torch.ones(1 << 18, device="cuda")
    graphs, results = [], []
    pool = torch.cuda.graph_pool_handle()
    for factor in (2, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            results.append((x * factor) + 1)
        graphs.append(graph)
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert [r.max().item() for r in results] == [3, 4]


def case_mem_pool():
    """Below PyTorch's own allocator: it takes whole segments of a pool from ours."""
    import torch
    import hbmalloc.torch
    pool = torch.cuda.MemPool(hbmalloc.torch.pluggable().allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((1 << 22,), 3.0, device="cuda")
    outside = torch.full((1 << 22,), 4.0, device="cuda")
    held = hbmalloc.torch.stats()["requested_bytes"]
    assert 16 << 20 <= held < 32 << 20, held
    assert inside.sum().item() == 3 * (1 << 22) and outside.sum().item() == 4 * (1 << 22)
    del inside, pool
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    print("  after the pool:", hbmalloc.torch.stats()["requested_bytes"], "bytes")


def case_out_of_memory():
    torch, ours = installed()
    torch.cuda.set_per_process_memory_fraction(0.01)
    small = torch.zeros(1 << 20, device="cuda")
    try:
        torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        raise AssertionError("no failure")
    except RuntimeError as error:
        assert "CUDA out of memory" in str(error) and "limit" in str(error), error
    assert small.sum().item() == 0
    assert ours.stats()["num_failures"] == 1


def case_empty_cache():
    torch, ours = installed()
    block = torch.zeros(1 << 28, device="cuda")
    del block
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert ours.stats()["pool_bytes"] < 64 << 20, ours.stats()["pool_bytes"]


def case_data_loader_forks():
    """Workers that are forked make CPU tensors; one that uses the GPU is told why not."""
    torch, _ = installed()
    torch.zeros(8, device="cuda")

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.full((1024,), float(index))

    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork",
                                         pin_memory=True)
    total = sum(batch.cuda(non_blocking=True).sum().item() for batch in loader)
    assert total == 1024 * 63 * 64 / 2, total
    import hbmalloc
    child = os.fork()
    if child == 0:
        try:
            hbmalloc.of_device(0)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


def case_threads():
    torch, ours = installed()
    import threading
    failures = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(200):
                    size = 1000 + (seed * 7919 + i * 104729) % 500_000
                    if torch.full((size,), float(seed), device="cuda").sum().item() != size * seed:
                        failures.append((seed, i))
        except Exception as error:  # noqa: BLE001
            failures.append(error)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


def case_devices():
    torch, ours = installed()
    if torch.cuda.device_count() < 2:
        print("skipped: one GPU")
        return
    parts = [torch.full((1 << 20,), float(i), device=f"cuda:{i}") for i in range(torch.cuda.device_count())]
    for i, part in enumerate(parts):
        assert part.mean().item() == i and ours.stats(i)["requested_bytes"] >= 4 << 20


def case_cupy():
    import cupy
    import hbmalloc
    import hbmalloc.cupy
    hbmalloc.cupy.install()
    a = cupy.arange(1 << 20, dtype=cupy.float64)
    with cupy.cuda.Stream():
        b = cupy.ones(1000) * 2
    assert float((a * 2).sum()) == float((1 << 20) * ((1 << 20) - 1)) and float(b.sum()) == 2000
    held = hbmalloc.of_device(0).stats()
    assert held["requested_bytes"] >= 8 << 20, held
    del a, b
    try:
        cupy.zeros(1 << 50, dtype=cupy.uint8)
        raise AssertionError("no failure")
    except cupy.cuda.memory.OutOfMemoryError:
        pass


def case_numba():
    os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "hbmalloc.numba"
    import numpy
    from numba import cuda
    import hbmalloc

    @cuda.jit
    def double(values):
        i = cuda.grid(1)
        if i < values.size:
            values[i] *= 2

    values = cuda.to_device(numpy.arange(10_000, dtype=numpy.float64))
    double[40, 256](values)
    assert (values.copy_to_host() == 2 * numpy.arange(10_000)).all()
    assert hbmalloc.of_device(0).stats()["num_allocs"] > 0


CASES = {name[5:]: function for name, function in list(globals().items()) if name.startswith("case_")}


def main():
    if sys.argv[1:2] == ["--one"]:
        CASES[sys.argv[2]]()
        return
    failed = False
    running = {name: subprocess.Popen([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
               for name in sys.argv[1:] or CASES}
    for name, process in running.items():
        try:
            output = process.communicate(timeout=90)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = "it did not end in 90 s\n" + process.communicate()[0]
            process.returncode = 1
        failed |= process.returncode != 0
        skipped = "skipped" in output
        print(f"{name}: {'FAILED' if process.returncode else 'skipped' if skipped else 'ok'}", flush=True)
        if process.returncode or "  after" in output:
            print("  " + output[-1200:].replace("\n", "\n  "), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
