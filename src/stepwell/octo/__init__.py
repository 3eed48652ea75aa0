"""Batches as Octo and OpenVLA make them of RLDS datasets; `docs/rlds.md` has a section on them.

::

    episode of RLDS --Standardize--> action, action_pad_mask, language_instruction, observation.proprio,
                       (transform=)  observation.image_NAME, observation.pad_mask_dict.image_NAME
                                              |   stores of several datasets have the same features
    dataset_statistics --> octo_batches --> fields, transform --> Loader --> observation.*, task.*, action, ...

Keys are those of the two programs, with dots for what is nested; ``Loader(nested=True)`` makes their dicts.

Source:
    octo-models/octo (octo/data: dataset.py, traj_transforms.py, obs_transforms.py, utils) and openvla/openvla
    (prismatic/vla/datasets/rlds), as of 2026; written from what they compute, not from their text.
"""

from stepwell.octo.batches import octo_batches, openvla_batches
from stepwell.octo.standardising import Standardize
from stepwell.octo.statistics import dataset_statistics, load_statistics, save_statistics, select_episodes

__all__ = [
    "Standardize",
    "dataset_statistics",
    "load_statistics",
    "octo_batches",
    "openvla_batches",
    "save_statistics",
    "select_episodes",
]
