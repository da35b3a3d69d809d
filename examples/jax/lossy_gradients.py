# SPDX-License-Identifier: Apache-2.0
"""Data parallelism in JAX with packet loss: each device loses packets of its own gradient before the sum over devices.

python examples/jax/lossy_gradients.py --network examples/jax/network.json
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

import droptest

RANKS, WIDTH, BATCH = 2, 128, 64


class Loss:
    """Each rank's network, and the link from this rank to every receiver of its gradient."""

    def __init__(self, source):
        self.networks = [droptest.Network(source, rank=rank, world_size=RANKS) for rank in range(RANKS)]
        self.flows = [network.flow("dp_gradient", source=rank) for rank, network in enumerate(self.networks)]

    def __call__(self, gradient):
        """In shard_map: the gradient without the packets that this device's rank loses in this step."""
        rank = jax.lax.axis_index("data")
        return io_callback(self.on_host, jax.ShapeDtypeStruct(gradient.shape, gradient.dtype), rank, gradient)

    def on_host(self, rank, gradient):
        arrived = np.array(gradient)  # a copy: JAX's own arrays are not writable
        self.flows[int(rank)].lose(arrived)
        return arrived

    def close(self):
        for network in self.networks:
            network.close()


def initial(key):
    first, second = jax.random.split(key)
    return {"w1": 0.1 * jax.random.normal(first, (WIDTH, WIDTH)), "w2": 0.1 * jax.random.normal(second, (WIDTH, 1))}


def error(parameters, inputs, targets):
    return jnp.mean((jnp.tanh(inputs @ parameters["w1"]) @ parameters["w2"] - targets) ** 2)


def step_of(lose, rate=0.1):
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("data",))
    everywhere, shared = PartitionSpec(), PartitionSpec("data")

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(everywhere, shared, shared), out_specs=(everywhere, everywhere),
             check_vma=False)  # fmt: skip
    def step(parameters, inputs, targets):
        value, gradient = jax.value_and_grad(error)(parameters, inputs, targets)
        message, tree_of = ravel_pytree(gradient)  # one message of all gradients, as a bucket
        mean = tree_of(jax.lax.pmean(lose(message), "data"))
        return jax.tree.map(lambda p, g: p - rate * g, parameters, mean), jax.lax.pmean(value, "data")

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--network", help="JSON file; without it nothing is lost")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", RANKS)  # without a GPU, of one CPU
    loss = Loss(args.network) if args.network else None
    step = step_of(loss or (lambda gradient: gradient))
    parameters = initial(jax.random.key(1))
    draws = np.random.default_rng(1)
    teacher = draws.standard_normal((WIDTH, 1), np.float32) / WIDTH**0.5
    for number in range(1, args.steps + 1):
        inputs = draws.standard_normal((BATCH, WIDTH), np.float32)
        parameters, value = step(parameters, inputs, np.tanh(inputs @ teacher))
        print(f"step {number}: loss {float(value):.9g}", flush=True)
    if loss:
        loss.close()


if __name__ == "__main__":
    main()
