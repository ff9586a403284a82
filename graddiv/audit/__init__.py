"""Audit a network of any kind: look, attack, report three numbers, say what is proved and what is not."""

from graddiv.audit.budget import BUDGETS, Budget
from graddiv.audit.result import Audit
from graddiv.audit.run import audit

__all__ = ["BUDGETS", "Audit", "Budget", "audit"]
