"""Transforms: what is done to the windows of a batch before it is handed over."""

from stepwell.transforms.actions import AbsoluteActions, DeltaActions, WrapAngles, wrap_angles
from stepwell.transforms.batch import BatchTransform, Together
from stepwell.transforms.chosen_steps import Poison, ReplaceLabel
from stepwell.transforms.conversion import Convert, OneHot, Reshape, Squeeze, ViewAs
from stepwell.transforms.hindsight import HindsightRelabel
from stepwell.transforms.images_axes import ToCHW, ToFloat, ToHWC
from stepwell.transforms.images_colors import Brightness, ColorJitter, Contrast, Grayscale, Hue, Saturation, Solarize
from stepwell.transforms.images_crops import CenterCrop, PadShift, RandomCrop, Translate
from stepwell.transforms.images_flips import RandomFlip
from stepwell.transforms.images_noise import Cutout, GaussianBlur, GaussianNoise, RandomErasing
from stepwell.transforms.images_resizing import CenterResizedCrop, RandomResizedCrop, Resize
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
    "Brightness",
    "CenterCrop",
    "CenterResizedCrop",
    "ColorJitter",
    "Contrast",
    "Convert",
    "ConvertRotation",
    "CutMix",
    "Cutout",
    "DeltaActions",
    "DiscountedSum",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "HindsightRelabel",
    "Hue",
    "Mixup",
    "NStepReturn",
    "Normalize",
    "OneHot",
    "PadShift",
    "Poison",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomResizedCrop",
    "RelativePoses",
    "ReplaceLabel",
    "Reshape",
    "Resize",
    "Saturation",
    "Solarize",
    "Squeeze",
    "ToCHW",
    "ToFloat",
    "ToHWC",
    "Together",
    "Transform",
    "Translate",
    "Unnormalize",
    "ViewAs",
    "WrapAngles",
    "convert_rotation",
    "wrap_angles",
]
