"""Transforms: changes of the windows of a batch before the program gets it."""

from stepwell.transforms.actions import AbsoluteActions, DeltaActions, WrapAngles, wrap_angles
from stepwell.transforms.base import BatchTransform, Together, Transform
from stepwell.transforms.colors import (
    Brightness,
    ColorJitter,
    Contrast,
    Cutout,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Hue,
    RandomErasing,
    Saturation,
    Solarize,
)
from stepwell.transforms.conversion import Convert, OneHot, Reshape, Squeeze, ViewAs
from stepwell.transforms.cropping import (
    CenterCrop,
    CenterResizedCrop,
    PadShift,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    Translate,
)
from stepwell.transforms.images import ToCHW, ToFloat, ToHWC
from stepwell.transforms.mixing import CutMix, Mixup, Poison, ReplaceLabel
from stepwell.transforms.normalising import Normalize, Unnormalize
from stepwell.transforms.poses import AbsolutePoses, ConvertRotation, RelativePoses, convert_rotation
from stepwell.transforms.returns import DiscountedSum, HindsightRelabel, NStepReturn

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
