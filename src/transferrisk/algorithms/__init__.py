"""Algorithms: TRM and its baselines, one file each, and the registry of their names."""

from .base import Algorithm, Batch, Config, Grid, Logs, Pass, Setting
from .coral import CORAL
from .dfr import DFR
from .eqrm import EQRM
from .erm import ERM
from .fish import Fish
from .fishr import Fishr
from .groupdro import GroupDRO
from .irm import IRM
from .mixup import Mixup
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
from .sam import SAM
from .team import Team
from .trm import TRM, TRMDirect
from .vrex import VREx

__all__ = [
    "ALGORITHMS",
    "CORAL",
    "DFR",
    "EQRM",
    "ERM",
    "IRM",
    "MLDG",
    "SAM",
    "TRM",
    "Algorithm",
    "Batch",
    "Config",
    "Fish",
    "Fishr",
    "Grid",
    "GroupDRO",
    "Logs",
    "Mixup",
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
