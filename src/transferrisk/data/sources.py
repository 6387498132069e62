"""What synthetic sets are built from. These can be fetched; they have no environments of their own."""

from __future__ import annotations

from .catalogue import register_source
from .facts import Facts, RemoteFile

_WHEEL = "pip:lucidmode==0.4.3.10!lucidmode/datasets/images"  # carries the original idx files of both


def _idx(
    folder: str, inside: str, mirrors: tuple[str, ...], files: dict[str, tuple[int, str]]
) -> tuple[RemoteFile, ...]:
    """The digests are of the uncompressed content: mirrors have compressed the same bytes differently."""
    return tuple(
        RemoteFile(
            path=f"{folder}/raw/{name}.gz",
            sources=(*(f"{mirror}/{name}.gz" for mirror in mirrors), f"{_WHEEL}/{inside}/{name}.gz"),
            bytes=size,
            content=digest,
        )
        for name, (size, digest) in files.items()
    )


MNIST = register_source(
    Facts(
        name="mnist",
        title="MNIST: 60000 and 10000 handwritten digits of 28 x 28",
        licence="CC BY-SA 3.0",
        citation="LeCun, Cortes & Burges (1998), The MNIST database of handwritten digits",
        homepage="http://yann.lecun.com/exdb/mnist/",
        classes=tuple("0123456789"),
        shape=(28, 28),
        files=_idx(
            "MNIST",
            "digits-mnist",
            ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
            {
                "train-images-idx3-ubyte": (9912422, "md5:6bbc9ace898e44ae57da46a324031adb"),
                "train-labels-idx1-ubyte": (28881, "md5:a25bea736e30d166cdddb491f175f624"),
                "t10k-images-idx3-ubyte": (1648877, "md5:2646ac647ad5339dbf082846283269ea"),
                "t10k-labels-idx1-ubyte": (4542, "md5:27ae3e4e09519cfbb04c329615203637"),
            },
        ),
    )
)

FASHION_MNIST = register_source(
    Facts(
        name="fashion-mnist",
        title="Fashion-MNIST: 60000 and 10000 pictures of clothes of 28 x 28",
        licence="MIT",
        citation="Xiao, Rasul & Vollgraf (2017), Fashion-MNIST: a novel image dataset for benchmarking",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        classes=(
            "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
        ),
        shape=(28, 28),
        files=_idx(
            "FashionMNIST",
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
            {
                "train-images-idx3-ubyte": (26421880, "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a"),
                "train-labels-idx1-ubyte": (29515, "md5:9018921c3c673c538a1fc5bad174d6f9"),
                "t10k-images-idx3-ubyte": (4422102, "md5:8181f5470baa50b63fa0f6fddb340f0a"),
                "t10k-labels-idx1-ubyte": (5148, "md5:15d484375f8d13e6eb1aabb0c3f46965"),
            },
        ),
    )
)  # fmt: skip

COCO = register_source(
    Facts(
        name="coco",
        title="COCO 2017: 118287 training photographs with instance masks of 80 objects",
        licence="CC BY 4.0 (annotations); photographs under Flickr's terms",
        citation="Lin et al. (2014), Microsoft COCO: Common Objects in Context",
        homepage="https://cocodataset.org",
        files=(
            RemoteFile(
                path="coco/annotations_trainval2017.zip",
                sources=(
                    "http://images.cocodataset.org/annotations/annotations_trainval2017.zip",
                    "https://s3.amazonaws.com/images.cocodataset.org/annotations/annotations_trainval2017.zip",
                ),
                bytes=252907541,
                digest="md5:f4bbac642086de4f52a3fdda2de5fa2c",
            ),
            RemoteFile(
                path="coco/train2017.zip",
                sources=(
                    "http://images.cocodataset.org/zips/train2017.zip",
                    "https://s3.amazonaws.com/images.cocodataset.org/zips/train2017.zip",
                ),
                bytes=19336861798,
                digest="md5:cced6f7f71b7629ddf16f17bbcfab6b2",
            ),
        ),
    )
)

PLACES = register_source(
    Facts(
        name="places",
        title="Places365-Standard, small: 1803460 training photographs of 365 scenes, 256 x 256",
        licence="for research and education only, see the home page",
        citation="Zhou et al. (2018), Places: A 10 Million Image Database for Scene Recognition",
        homepage="http://places2.csail.mit.edu",
        shape=(3, 256, 256),
        files=(
            RemoteFile(
                path="places/train_256_places365standard.tar",
                sources=("http://data.csail.mit.edu/places/places365/train_256_places365standard.tar",),
                bytes=26103685120,
                digest="md5:53ca1c756c3d1e7809517cc47c5561c5",
            ),
        ),
    )
)
