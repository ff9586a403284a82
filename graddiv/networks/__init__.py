"""Randomized networks: architectures written once, randomness added from outside."""

from graddiv.networks.activation_noise import ActivationPNINetwork, pni_activations
from graddiv.networks.architectures import Normalize, architecture, mnist_cnn, stl10_cnn, vgg16
from graddiv.networks.compression import compressed
from graddiv.networks.dropout import DropoutNetwork, mc_dropout
from graddiv.networks.ensemble import EnsembleNetwork, adp_diversity, ensemble
from graddiv.networks.foreign import ForeignNetwork, randomize
from graddiv.networks.gaussian import GaussianNetwork, bayesian
from graddiv.networks.local import LocalGaussian, local_reparametrization
from graddiv.networks.mixup import MixupNetwork, mixup_inference
from graddiv.networks.pni import PNINetwork, pni
from graddiv.networks.randomized import (
    Dirac,
    Noise,
    Noiseless,
    RandomizedNetwork,
    SampleModel,
    Support,
    Theta,
    running_statistics,
)
from graddiv.networks.rse import RSENetwork, rse
from graddiv.networks.sap import SAPNetwork, sap
from graddiv.networks.smoothing import GaussianSmoothing, PixelDPNetwork, SmoothedNetwork, pixeldp, smoothing
from graddiv.networks.straight_through import StraightThrough, straight_through
from graddiv.networks.total_variation import TotalVariationNetwork, total_variation
from graddiv.networks.transforms import TransformNetwork, random_crops, resize_and_pad
from graddiv.networks.wca import WCANetwork, wca
from graddiv.registries import ARCHITECTURES

__all__ = [
    "ARCHITECTURES",
    "ActivationPNINetwork",
    "Dirac",
    "DropoutNetwork",
    "EnsembleNetwork",
    "ForeignNetwork",
    "GaussianNetwork",
    "GaussianSmoothing",
    "LocalGaussian",
    "MixupNetwork",
    "Noise",
    "Noiseless",
    "Normalize",
    "PNINetwork",
    "PixelDPNetwork",
    "RSENetwork",
    "RandomizedNetwork",
    "SAPNetwork",
    "SampleModel",
    "SmoothedNetwork",
    "StraightThrough",
    "Support",
    "Theta",
    "TotalVariationNetwork",
    "TransformNetwork",
    "WCANetwork",
    "adp_diversity",
    "architecture",
    "bayesian",
    "compressed",
    "ensemble",
    "local_reparametrization",
    "mc_dropout",
    "mixup_inference",
    "mnist_cnn",
    "pixeldp",
    "pni",
    "pni_activations",
    "random_crops",
    "randomize",
    "resize_and_pad",
    "rse",
    "running_statistics",
    "sap",
    "smoothing",
    "stl10_cnn",
    "straight_through",
    "total_variation",
    "vgg16",
    "wca",
]
