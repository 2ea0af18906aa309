"""Exact ledgers of parameters, FLOPs and bytes; no forward pass is needed."""

from positionwise.accounting.count import account
from positionwise.accounting.difference import Difference, difference
from positionwise.accounting.ledger import Account, FeedForwardAccount, Group

__all__ = ["Account", "Difference", "FeedForwardAccount", "Group", "account", "difference"]
