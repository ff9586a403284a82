"""Copy two trained runs of the study into the package: the networks that the demo attacks.

python scripts/ship_networks.py RUN_OF_ADV_BNN RUN_OF_ADV_BNN+GRADDIV
"""

import sys
from pathlib import Path

from graddiv.paper.shipped import SHIPPED
from graddiv.report.plan import copy_run
from graddiv.runs import Run

for path in sys.argv[1:]:
    source = Run(Path(path))
    target = Run(SHIPPED / source.experiment.method)
    copy_run(source, target)
    print(f"{source.path} -> {target.path}")
