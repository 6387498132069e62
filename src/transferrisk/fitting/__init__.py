"""From your data to a model: compared in held-out environments, saved with all it needs, used on new rows."""

from .compare import Comparison
from .fitted import Fitted, fit
from .folder import save_fit
from .model import Model, load_model
from .plan import Plan
from .unstable import DropUnstable

__all__ = ["Comparison", "DropUnstable", "Fitted", "Model", "Plan", "fit", "load_model", "save_fit"]
