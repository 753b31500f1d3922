from torchvision import missing
from torchvision.transforms import InterpolationMode as InterpolationMode

__getattr__ = missing(__name__)
