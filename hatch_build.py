"""The README as a package index shows it: links and pictures lead to the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = metadata["urls"]["Homepage"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https?:|#)", f"]({repository}/blob/main/", text)
        text = re.sub(r'src="(?!https?:)', f'src="{repository}/raw/main/', text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
