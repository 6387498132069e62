"""Optional packages are found, or asked for by the name of their extra."""

from __future__ import annotations

import pytest

from transferrisk.errors import InputError
from transferrisk.extras import require


def test_a_module_that_is_there():
    import email.mime

    assert require("email.mime", "post") is email.mime


def test_a_package_that_is_not_there():
    with pytest.raises(InputError, match=r"^no_such_package is not installed: pip install 'transferrisk\[nonesuch\]'$"):
        require("no_such_package.inside", "nonesuch")
