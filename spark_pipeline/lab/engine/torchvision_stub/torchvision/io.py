from enum import Enum

from torchvision import missing

__getattr__ = missing(__name__)


class ImageReadMode(Enum):
    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4
