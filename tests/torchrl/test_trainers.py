"""TorchRL's trainers over a ring beside the same over tensors."""

import warnings
from pathlib import Path
from typing import Any

import pytest

torchrl = pytest.importorskip("torchrl", reason="TorchRL is not installed")
pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
import torch  # noqa: E402

with warnings.catch_warnings():
    # TorchRL's collectors warn of their own classes as they are loaded
    warnings.simplefilter("ignore", DeprecationWarning)
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement, SliceSampler
    from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss
    from torchrl.trainers import ReplayBufferTrainer, Trainer

from stepwell.torchrl import StepwellStorage  # noqa: E402

# of TorchRL's own classes, as its trainers and collectors use them
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

FRAMES = 40
SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=4, end_key=("next", "done"), strict_length=False),
}


def as_it_is(batch: Any) -> Any:
    return batch


def make_env() -> Any:
    return TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter(15))


def learn(storage: Any, *, name: str = "random", envs: int = 1, flat: bool = True, **files: Any) -> list[float]:
    """Train a network on what a collector returns, three times, and return its weights."""
    torch.manual_seed(0)
    env = make_env() if envs == 1 else SerialEnv(envs, make_env)
    env.set_seed(0)
    actor = QValueActor(torch.nn.Linear(4, 2), in_keys=["observation"], spec=make_env().action_spec)
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    trainer = Trainer(
        collector=Collector(env, actor, frames_per_batch=FRAMES, total_frames=3 * FRAMES),
        total_frames=3 * FRAMES,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 1e-2),
        optim_steps_per_batch=3,
        frame_skip=1,
        progress_bar=False,
        seed=0,
        save_trainer_file=files.get("save"),
        save_trainer_interval=FRAMES,
    )
    buffer = TensorDictReplayBuffer(storage=storage, sampler=SAMPLERS[name](), batch_size=16, collate_fn=as_it_is)
    ReplayBufferTrainer(buffer, flatten_tensordicts=flat).register(trainer)
    if "load" in files:
        trainer.load_from_file(files["load"])
        # not the frames that it has already played
        trainer.collected_frames = 0
    torch.manual_seed(1)
    trainer.train()
    return [float(value) for weights in loss.parameters() for value in weights.detach().reshape(-1)]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("envs", [1, 2])
def test_trainers_learn_the_same(name: str, envs: int) -> None:
    # the ring goes round within the second batch
    found = [learn(kind(70), name=name, envs=envs) for kind in (StepwellStorage, LazyTensorStorage)]
    assert found[0] == found[1]


def test_batches_of_two_dimensions_are_elements_of_one() -> None:
    found = [learn(kind(5), envs=2, flat=False) for kind in (StepwellStorage, LazyTensorStorage)]
    assert found[0] == found[1]


def test_a_trainer_goes_on_from_its_file(tmp_path: Path) -> None:
    found = []
    for kind in (StepwellStorage, LazyTensorStorage):
        file = tmp_path / f"{kind.__name__}.pt"
        learn(kind(70), save=file)
        found.append(learn(kind(70), load=file))
    assert found[0] == found[1]
