"""A store with the features of PushT whose episodes need no simulator."""

from pathlib import Path

import numpy as np

import stepwell


def record_walks(path: Path, num_episodes: int) -> None:
    """Record a pusher that walks to the T and stays there, in a store with the features of PushT."""
    schema = {
        "observation.agent_pos": stepwell.Array(2, "float64", final=True),
        "info.block_pose": stepwell.Array(3, "float64"),
        "action": stepwell.Array(2),
    }
    rng = np.random.default_rng(0)
    with stepwell.create(path, schema, fps=10) as store, store.writer() as writer:
        for _ in range(num_episodes):
            agent, block = rng.uniform(50, 450, (2, 2))
            agents, actions = [agent], []
            for _ in range(12):
                way = block - agents[-1]
                actions.append(agents[-1] + way * min(1.0, 60 / max(np.linalg.norm(way), 1e-9)))
                agents.append(agents[-1] + 0.7 * (actions[-1] - agents[-1]))
            writer.add_episode(
                {
                    "observation.agent_pos": np.array(agents),
                    "info.block_pose": np.tile([*block, 0.5], (12, 1)),
                    "action": np.array(actions, np.float32),
                }
            )


def standing_still(path: Path) -> float:
    """Return the mean distance of the actions from where the pusher is at the beginning of their chunk."""
    store = stepwell.open(path, mode="r")
    fields = {"agent": "observation.agent_pos", "action": range(16)}
    (batch,) = stepwell.Loader(store, fields, batch_size=store.num_steps)
    apart = np.linalg.norm(batch["action"] - batch["agent"][:, None], axis=-1)
    return float(apart[~batch["action_is_pad"]].mean())
