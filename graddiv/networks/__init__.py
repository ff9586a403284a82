"""Randomized networks: architectures written once, randomness added from outside."""

from graddiv.networks.architectures import Normalize, architecture, mnist_cnn, stl10_cnn, vgg16
from graddiv.networks.ensemble import EnsembleNetwork, adp_diversity, ensemble
from graddiv.networks.foreign import ForeignNetwork, randomize
from graddiv.networks.gaussian import GaussianNetwork, bayesian
from graddiv.networks.local import LocalGaussian, local_reparametrization
from graddiv.networks.mixup import MixupNetwork, mixup_inference
from graddiv.networks.pni import PNINetwork, pni
from graddiv.networks.randomized import Dirac, Noise, RandomizedNetwork, SampleModel, Support, Theta, running_statistics
from graddiv.networks.rse import RSENetwork, rse
from graddiv.networks.straight_through import StraightThrough, straight_through
from graddiv.registries import ARCHITECTURES

__all__ = [
    "ARCHITECTURES",
    "Dirac",
    "EnsembleNetwork",
    "ForeignNetwork",
    "GaussianNetwork",
    "LocalGaussian",
    "MixupNetwork",
    "Noise",
    "Normalize",
    "PNINetwork",
    "RSENetwork",
    "RandomizedNetwork",
    "SampleModel",
    "StraightThrough",
    "Support",
    "Theta",
    "adp_diversity",
    "architecture",
    "bayesian",
    "ensemble",
    "local_reparametrization",
    "mixup_inference",
    "mnist_cnn",
    "pni",
    "randomize",
    "rse",
    "running_statistics",
    "stl10_cnn",
    "straight_through",
    "vgg16",
]
