"""Training inside Ray Train, by two workers; run as a script by test_exact_ray.py: PATH OF STORE, EMPTY DIRECTORY."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: dict[str, str]) -> None:
    """Evaluate and train on one rank, and write down what it got."""
    import numpy as np
    import ray.train
    from torch.utils.data import DataLoader

    import stepwell
    from stepwell.loader import BatchSampler, Loader, WindowDataset, gather_valid

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    store = stepwell.open(config["store"], mode="r")
    options: Any = {"batch_size": 4, "rank": rank, "world_size": world}
    loader = Loader(store, pad=True, to="torch", threads=1, **options)
    whole = gather_valid(loader, expected=loader.num_positions)
    dataset = WindowDataset(store, to="torch")
    sampler = BatchSampler(dataset, order="random", pad="wrap", epochs=2, **options)
    batches = DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate, num_workers=2)
    rows = [(batch.anchors.tolist(), np.asarray(batch.valid).tolist()) for batch in batches]
    assert whole is not None
    found = {"gathered": whole["item"].tolist(), "trained": rows, "world": world}
    Path(config["found"], f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    ray.train.report({"batches": len(rows)})


def main(store: str, found: str) -> None:
    """Train."""
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"store": store, "found": found},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(Path(found, "ray"))),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
