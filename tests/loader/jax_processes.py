"""A batch that is laid over the devices of two processes; run with the path of a store of numbered steps."""

import os
import socket
import subprocess
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"


def main(path: str, port: str, rank: int) -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import stepwell

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    store = stepwell.open(path, mode="r")
    options = {"batch_size": 8, "rank": rank, "world_size": 2, "order": "random", "drop_last": True}
    plain = stepwell.Loader(store, {"state": [0]}, **options)
    loader = stepwell.Loader(store, {"state": [0]}, to="jax", sharding=sharding, **options)
    for batch, other, _ in zip(loader, plain, range(20), strict=False):
        assert batch["state"].shape == (16, 1, 16), batch["state"].shape
        mine = [shard.data for shard in batch["state"].addressable_shards]
        np.testing.assert_array_equal(np.concatenate(mine), other["state"])
    print("done", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, __file__, sys.argv[1], port]
        children = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
        sys.exit(max(child.wait(60) for child in children))
