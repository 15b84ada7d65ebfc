"""Images of digits that need no download: digits blended with photographs, and digits rendered from fonts.

scikit-learn contains the photographs, matplotlib contains the fonts. Both need the package pillow.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import TaskError

SIDE = 28
_FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
    "cmti10",
)
_REMEDY = "run pip install 'matplotlib>=3.9' pillow, or leave this domain out of the option domains"


def blended(digits: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """|patch - digit| with random patches of photographs, the method of MNIST-M (Ganin and others, 2016).

    `digits` has shape (n, 28, 28) or (n, 28, 28, 3), the result (n, 28, 28, 3). TaskError if pillow is missing.
    """
    from sklearn.datasets import load_sample_images  # imported here, because it takes half as much memory as torch

    try:
        photographs = load_sample_images().images
    except ImportError as error:
        raise TaskError("the domain 'blended' needs pillow, which is not installed", _REMEDY) from error
    patches = np.empty((len(digits), SIDE, SIDE, 3), np.int16)
    for patch in patches:
        photograph = photographs[rng.integers(len(photographs))]
        top, left = (rng.integers(length - SIDE + 1) for length in photograph.shape[:2])
        patch[:] = photograph[top : top + SIDE, left : left + SIDE]
    colours = digits if digits.ndim == 4 else digits[..., None]
    return np.asarray(np.abs(patches - colours), np.uint8)


def rendered(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image per label of shape (n,): random font, size, angle, position, sharpness and colours.

    The result has shape (n, 28, 28, 3). TaskError if matplotlib or pillow is missing.
    """
    count = len(labels)
    ink = _ink(labels, rng)[..., None] / np.float32(255)
    paper = rng.random((count, 1, 1, 3), np.float32)
    # Every channel differs by at least 0.3 from the paper, so each digit is legible, dark on light or light on dark.
    colour = (paper + rng.uniform(0.3, 0.7, paper.shape).astype(np.float32)) % 1
    noise = rng.normal(0, 0.04, (count, SIDE, SIDE, 3)).astype(np.float32)
    shown = np.clip(paper + ink * (colour - paper) + noise, 0, 1)
    return np.asarray(np.rint(shown * 255), np.uint8)


def _ink(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """How much of each pixel the digit covers, 0 to 255, shape (n, 28, 28)."""
    try:
        import matplotlib as mpl
        from PIL import Image, ImageDraw, ImageFilter, ImageFont
    except ImportError as error:
        raise TaskError("the domain 'rendered' needs matplotlib, which is not installed", _REMEDY) from error
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    fonts: dict[tuple[str, int], Any] = {}
    ink = np.empty((len(labels), SIDE, SIDE), np.uint8)
    for label, covered in zip(labels, ink, strict=True):
        key = (_FACES[rng.integers(len(_FACES))], int(rng.integers(18, 29)))
        if key not in fonts:
            fonts[key] = ImageFont.truetype(str(folder / f"{key[0]}.ttf"), key[1])
        left, top, right, bottom = fonts[key].getbbox(str(label))
        across, down = rng.uniform(-3, 3, 2)
        image = Image.new("L", (SIDE, SIDE))
        corner = ((SIDE - left - right) / 2 + across, (SIDE - top - bottom) / 2 + down)
        ImageDraw.Draw(image).text(corner, str(label), fill=255, font=fonts[key])
        turned = image.rotate(float(rng.uniform(-15, 15)), Image.Resampling.BILINEAR)
        covered[:] = np.asarray(turned.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1)))))
    return ink
