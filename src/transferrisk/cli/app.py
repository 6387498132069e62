"""The commands; each has a file of its own."""

from __future__ import annotations

import typer

from .audit import audit
from .bench import bench
from .data import data_app
from .demo import demo
from .experiment import experiment
from .export import export
from .fit import fit
from .options import Command, Group
from .predict import predict
from .report import report
from .train import train

app = typer.Typer(
    cls=Group,
    help="Transfer risk minimisation: train models that still work in places they were not trained for.",
    epilog="trm --version prints the version; trm COMMAND --help explains a command, with an example.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(cls=Command)(demo)
app.command(cls=Command)(bench)
app.command(cls=Command)(train)
app.command(cls=Command)(audit)
app.command(cls=Command)(fit)
app.command(cls=Command)(predict)
app.command(cls=Command)(export)
app.command(cls=Command)(experiment)
app.command(cls=Command)(report)
app.add_typer(data_app, name="data")
