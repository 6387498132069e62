"""From your data to a model: compared in environments that were held out, saved with all it needs, used on new rows."""

from .compare import Comparison
from .fitted import Fitted, Plan, fit
from .folder import load
from .model import Model
from .write import save

__all__ = ["Comparison", "Fitted", "Model", "Plan", "fit", "load", "save"]
