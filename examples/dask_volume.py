"""
Gradients of a 3-D convolution over a volume that does not fit into the memory of the processes that compute them.

A volume of 8 channels and the gradient with respect to what a layer makes of it are two stacks of files, together four
times as large as the memory that the processes may take beyond what they have at the start: a limit is set, beyond
which allocations fail. The gradient with respect to the volume becomes a third stack, a slab at a time.

    python examples/dask_volume.py [--cap MIB] [--processes N]

With --processes a local cluster of dask.distributed computes, else the threads of this process.
"""

import argparse
import contextlib
import resource
import tempfile
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import convbwd.dask

CHANNELS, SIDE, SLAB = 8, 64, 8  # of the volume: channels, rows and columns; slices of a file
MIB = 1 << 20


def random_slab(block_id, seed):
    rng = np.random.default_rng((seed, block_id[2]))
    return rng.standard_normal((1, CHANNELS, SLAB, SIDE, SIDE), np.float32)


def write_stack(folder, slabs, seed):
    """Write random numbers as da.from_npy_stack reads them."""
    chunks = ((1,), (CHANNELS,), (SLAB,) * slabs, (SIDE,), (SIDE,))
    volume = da.map_blocks(random_slab, seed=seed, chunks=chunks, dtype=np.float32, meta=np.empty(0, np.float32))
    da.to_npy_stack(str(folder), volume, axis=2)


def read_stack(folder):
    return da.from_npy_stack(str(folder), mmap_mode=None)


def limit_memory(more):
    """Let this process take so many bytes more than it has now; all private memory counts, stacks of threads too."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + more, resource.RLIM_INFINITY))


def fits(size):
    try:
        np.ones(size, np.uint8)
    except MemoryError:
        return False
    return True


@contextlib.contextmanager
def workers(processes):
    """Yield a function that calls another one in each process that computes, and returns a list of the results."""
    if processes:
        from dask.distributed import Client, LocalCluster

        with (
            LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield lambda *call: list(client.run(*call).values())
    else:
        with dask.config.set(scheduler="threads", num_workers=2):
            yield lambda function, *arguments: [function(*arguments)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--cap", type=int, default=96, metavar="MIB", help="memory for all processes (default: 96)")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="of a local cluster (default: none)")
    options = parser.parse_args()
    cap = options.cap * MIB
    with tempfile.TemporaryDirectory() as name, workers(options.processes) as in_each_process:
        folder = Path(name)
        slabs = 4 * cap // (2 * CHANNELS * SLAB * SIDE * SIDE * 4)
        write_stack(folder / "volume", slabs, seed=0)
        write_stack(folder / "grad_output", slabs, seed=1)
        x, dy = read_stack(folder / "volume"), read_stack(folder / "grad_output")
        weight = np.random.default_rng(2).standard_normal((CHANNELS, CHANNELS, 3, 3, 3), np.float32)
        print(f"volume and gradient: {(x.nbytes + dy.nbytes) / MIB:.0f} MiB; memory to be taken: {cap / MIB:.0f} MiB")

        # Dask's workers are the threads; others would only take memory for their stacks.
        in_each_process(convbwd.set_num_threads, 1)
        in_each_process(limit_memory, cap // max(1, options.processes))
        print("memory for the whole volume at once:", any(in_each_process(fits, x.nbytes)))

        start = time.perf_counter()
        dx, dw, db = convbwd.dask.convolution_backward(dy, x, weight, padding=1)
        dw, db = dask.compute(dw, db)
        da.to_npy_stack(str(folder / "grad_input"), dx, axis=2)
        seconds = time.perf_counter() - start
        print(f"gradients of the volume, {dw.size} weights and {db.size} biases, slab by slab: {seconds:.1f} s")
        print(
            f"sums of the gradients of weight and bias: {float(dw.sum(dtype=float))!r}, {float(db.sum(dtype=float))!r}"
        )

        # The first slices read no others than these.
        first, read = 2 * SLAB, 2 * SLAB + 1
        expected, _, _ = convbwd.convolution_backward(
            dy[:, :, :read].compute(), x[:, :, :read].compute(), weight, padding=1
        )
        written = read_stack(folder / "grad_input")[:, :, :first].compute()
        print("same bits as in memory:", np.array_equal(expected[:, :, :first], written))


if __name__ == "__main__":
    main()
