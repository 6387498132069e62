"""Tables and pages, made from records alone."""

from .page import write_page
from .tables import Row, Summary, caption, summarise, verdict

__all__ = ["Row", "Summary", "caption", "summarise", "verdict", "write_page"]
