"""Models people have: their feed-forward networks, found by structure and proven by numbers."""

from positionwise.adapters.finding import find
from positionwise.adapters.maps import linear_map
from positionwise.adapters.saved import saved_bytes
from positionwise.adapters.sites import Found, Mixture, Site, Unplaced

__all__ = ["Found", "Mixture", "Site", "Unplaced", "find", "linear_map", "saved_bytes"]
