"""The paper's tables and figures: what each needs, its published values, and how it is reproduced."""
