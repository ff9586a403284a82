"""Randomized networks: architectures written once, randomness added from outside."""
# isort: skip_file
# fmt: off

from graddiv.networks.activations import ActivationPNINetwork, RSENetwork, WCANetwork, pni_activations, rse, wca
from graddiv.networks.architectures import ARCHITECTURES, Normalize, architecture, mnist_cnn, stl10_cnn, vgg16
from graddiv.networks.compression import TotalVariationNetwork, compressed, total_variation
from graddiv.networks.defense import DEFENSES, Defense, Rules, defense
from graddiv.networks.dropping import DropoutNetwork, SAPNetwork, mc_dropout, sap
from graddiv.networks.ensemble import EnsembleNetwork, adp_diversity, ensemble
from graddiv.networks.foreign import ForeignNetwork, randomize
from graddiv.networks.images import GaussianSmoothing, InputNoise, MixupNetwork, PixelDPNetwork, SmoothedNetwork
from graddiv.networks.images import TransformNetwork, mixup_inference, pixeldp, random_crops, resize_and_pad, smoothing
from graddiv.networks.inputs import running_statistics
from graddiv.networks.randomized import Dirac, Noise, Noiseless, RandomizedNetwork, SampleModel, StraightThrough
from graddiv.networks.randomized import Support, Theta, straight_through
from graddiv.networks.weights import GaussianNetwork, PNINetwork, WeightNoise, bayesian, pni

__all__ = [
    "ARCHITECTURES", "DEFENSES", "ActivationPNINetwork", "Defense", "Dirac", "DropoutNetwork", "EnsembleNetwork",
    "ForeignNetwork", "GaussianNetwork", "GaussianSmoothing", "InputNoise", "MixupNetwork", "Noise", "Noiseless",
    "Normalize", "PNINetwork", "PixelDPNetwork", "RSENetwork", "RandomizedNetwork", "Rules", "SAPNetwork",
    "SampleModel", "SmoothedNetwork", "StraightThrough", "Support", "Theta", "TotalVariationNetwork",
    "TransformNetwork", "WCANetwork", "WeightNoise", "adp_diversity", "architecture", "bayesian", "compressed",
    "defense", "ensemble", "mc_dropout", "mixup_inference", "mnist_cnn", "pixeldp", "pni", "pni_activations",
    "random_crops", "randomize", "resize_and_pad", "rse", "running_statistics", "sap", "smoothing", "stl10_cnn",
    "straight_through", "total_variation", "vgg16", "wca",
]
