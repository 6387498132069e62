"""office-home: 65 things of the office and the home, as art, clip art, product pictures and photographs."""

from __future__ import annotations

from ..catalogue import DataSet, register
from ..facts import Facts
from ..image_set import SIZE
from .published import Published

OFFICE_HOME = Published(
    Facts(
        name="office-home",
        title="Office-Home: 65 things as art, clip art, product pictures and photographs",
        licence="for non-commercial research and education, see the home page",
        citation="Venkateswara, Eusebio, Chakraborty & Panchanathan (2017), Deep Hashing Network for Unsupervised "
        "Domain Adaptation",
        homepage="https://www.hemanthdv.org/officeHomeDataset.html",
        environments={"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
        classes=(
            "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar",
            "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser",
            "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer",
            "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse",
            "Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin",
            "Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda",
            "Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
        ),
        shape=(3, SIZE, SIZE),
        folder="OfficeHome",
        by_hand="its makers ask for agreement to their terms: follow the download link on "
        "https://www.hemanthdv.org/officeHomeDataset.html to OfficeHomeDataset_10072016.zip, then run: trm data fetch "
        "office-home --from OfficeHomeDataset_10072016.zip",
    ),
    folders=("OfficeHome", "office_home_dg", "OfficeHomeDataset_10072016"),
    aliases={"real": "real_world", "clip": "clipart"},
)  # fmt: skip

register(
    DataSet(
        OFFICE_HOME.facts,
        OFFICE_HOME.load,
        takes=frozenset({"size", "lazy"}),
        locate=OFFICE_HOME.locate,
        check=OFFICE_HOME.samples,
    )
)
