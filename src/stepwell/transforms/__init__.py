"""Transforms: what is done to the windows of a batch before it is handed over."""

from stepwell.transforms.actions import AbsoluteActions, DeltaActions, WrapAngles, wrap_angles
from stepwell.transforms.batch import BatchTransform, Together
from stepwell.transforms.chosen_steps import Poison, ReplaceLabel
from stepwell.transforms.conversion import Convert, OneHot, Reshape, Squeeze, ViewAs
from stepwell.transforms.hindsight import HindsightRelabel
from stepwell.transforms.mixing import CutMix, Mixup
from stepwell.transforms.normalising import Normalize, Unnormalize
from stepwell.transforms.poses import AbsolutePoses, RelativePoses
from stepwell.transforms.returns import DiscountedSum, NStepReturn
from stepwell.transforms.rotations import ConvertRotation, convert_rotation
from stepwell.transforms.transform import Transform

__all__ = [
    "AbsoluteActions",
    "AbsolutePoses",
    "BatchTransform",
    "Convert",
    "ConvertRotation",
    "CutMix",
    "DeltaActions",
    "DiscountedSum",
    "HindsightRelabel",
    "Mixup",
    "NStepReturn",
    "Normalize",
    "OneHot",
    "Poison",
    "RelativePoses",
    "ReplaceLabel",
    "Reshape",
    "Squeeze",
    "Together",
    "Transform",
    "Unnormalize",
    "ViewAs",
    "WrapAngles",
    "convert_rotation",
    "wrap_angles",
]
