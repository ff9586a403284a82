"""Cross-validation of lambda and of the regularizer: under EOT-PGD on the validation split, never on test data."""

from graddiv.tuning.output import plot, write_table
from graddiv.tuning.search import Judge, Result, Search
from graddiv.tuning.trials import own_regularizer, tune

__all__ = ["Judge", "Result", "Search", "own_regularizer", "plot", "tune", "write_table"]
