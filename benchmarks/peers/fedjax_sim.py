"""Federated averaging with fedjax: its algorithm, its jit backend, its batches."""

import time

import common
import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

Layers = list[dict[str, jax.Array]]


def logits(params: Layers, x: jax.Array) -> jax.Array:
    """Dense layers with ReLUs between them."""
    out = x.reshape(len(x), -1)
    for k, layer in enumerate(params):
        out = (jax.nn.relu(out) if k else out) @ layer["w"] + layer["b"]
    return out


def losses(params: Layers, batch: dict[str, jax.Array]) -> jax.Array:
    """[n] cross-entropy of each row."""
    out = logits(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(out, batch["y"])


def worth(params: Layers, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and loss on rows."""
    right = float((logits(params, x).argmax(1) == y).mean())
    return right, float(losses(params, {"x": x, "y": y}).mean())


def main() -> None:
    job = common.job()
    y = job.every_y.astype(np.int32)
    clients = []
    for i in range(job.clients):
        mine = slice(job.starts[i], job.starts[i + 1])
        clients.append(fedjax.ClientDataset({"x": job.every_x[mine], "y": y[mine]}))
    params = [
        {"w": jnp.asarray(w.T), "b": jnp.asarray(b)}
        for w, b in zip(job.init[::2], job.init[1::2], strict=True)
    ]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn=jax.grad(lambda params, batch, rng: losses(params, batch).mean()),
        client_optimizer=fedjax.optimizers.sgd(job.rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=1),
    )
    state = algorithm.init(params)
    seconds, steps = [], 0
    for number in range(job.rounds):
        begin = time.perf_counter()
        asked = job.asked(number)
        keys = jax.random.split(jax.random.PRNGKey(number), len(asked))
        state, _ = algorithm.apply(
            state, [(b"%d" % i, clients[i], key) for i, key in zip(asked, keys, strict=True)]
        )
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - begin)
        steps += job.steps(asked)
    common.report(seconds, steps, *worth(state.params, job.test_x, job.test_y.astype(np.int32)))


if __name__ == "__main__":
    main()
