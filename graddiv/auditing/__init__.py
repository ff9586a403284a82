"""Audit a network of any kind: look, attack, report three numbers, say what is proved and what is not."""

from graddiv.auditing.budget import BUDGETS, Budget
from graddiv.auditing.result import Audit
from graddiv.auditing.run import audit

__all__ = ["BUDGETS", "Audit", "Budget", "audit"]
