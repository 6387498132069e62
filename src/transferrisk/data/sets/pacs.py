"""pacs: photos, art paintings, cartoons and sketches of seven things."""

from __future__ import annotations

from ..catalogue import DataSet, register
from ..facts import Facts
from ..image_set import SIZE
from .published import Published

PACS = Published(
    Facts(
        name="pacs",
        title="PACS: photos, art paintings, cartoons and sketches of seven things",
        licence="not stated by its makers; images from several sources, for research",
        citation="Li, Yang, Song & Hospedales (2017), Deeper, Broader and Artier Domain Generalization",
        homepage="https://domaingeneralization.github.io",
        environments={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        shape=(3, SIZE, SIZE),
        folder="PACS",
        by_hand="download PACS.zip from Google Drive (file 1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd, linked from "
        "https://domaingeneralization.github.io), then run: trm data fetch pacs --from PACS.zip",
    ),
    folders=("PACS", "pacs_data", "kfold"),
    aliases={"art": "art_painting", "artpaintings": "art_painting", "cartoons": "cartoon", "photos": "photo",
             "sketches": "sketch"},
)  # fmt: skip

register(DataSet(PACS.facts, PACS.load, takes=frozenset({"size", "lazy"}), locate=PACS.locate, check=PACS.samples))
