"""Make one filter of a network's first layer steeper: what is given to a second stage to see how it meets R.

python scripts/steepen_filter.py RUN FILTER FACTOR OUT.safetensors

A filter that is on where the image is black and that the network does not use costs nothing to multiply.
"""

import sys
from pathlib import Path

from safetensors.torch import save_file

from graddiv.runs import network_of

run, number, factor, out = sys.argv[1:]
state = {name: tensor.float() for name, tensor in network_of(Path(run)).items()}
state["module.0.weight"][int(number)] *= float(factor)
save_file(state, out)
print(f"{run}: weights of filter {number} times {factor} -> {out}")
