"""The algorithms, one small file each, under the names of the registry."""

from .base import Algorithm, Batch, Config, Grid, Logs, Pass, Setting, Team
from .erm import ERM
from .fish import Fish
from .groupdro import GroupDRO
from .irm import IRM
from .mldg import MLDG
from .registry import (
    ALGORITHMS,
    available,
    configure,
    create,
    describe_algorithm,
    get_algorithm,
    parse_settings,
    register,
    setting_names,
)
from .reweight import Reweight
from .trm import TRM, TRMDirect
from .vrex import VREx

__all__ = [
    "ALGORITHMS",
    "ERM",
    "IRM",
    "MLDG",
    "TRM",
    "Algorithm",
    "Batch",
    "Config",
    "Fish",
    "Grid",
    "GroupDRO",
    "Logs",
    "Pass",
    "Reweight",
    "Setting",
    "TRMDirect",
    "Team",
    "VREx",
    "available",
    "configure",
    "create",
    "describe_algorithm",
    "get_algorithm",
    "parse_settings",
    "register",
    "setting_names",
]
