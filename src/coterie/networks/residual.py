"""ResNet-18 for small images, and its blocks."""

from torch import Tensor, nn
from torch.nn import functional as F

from coterie.networks.blocks import Shape, Width, chain, check_image_shape, scale_size


def kt_resnet18(input_shape: Shape, classes: int, width: Width = 1.0) -> nn.Module:
    """KT-pFL's ResNet-18 in its CIFAR form: 3x3 stem, no max pool, no convolution biases.

    width: factor of every layer's width.
    """
    channels, *_ = check_image_shape("kt-resnet18", input_shape, least=1)
    size = scale_size(64, width)
    layers: dict[str, nn.Module] = {
        "stem": chain(conv=conv3(channels, size), bn=nn.BatchNorm2d(size), relu=nn.ReLU())
    }
    for stage, full in enumerate((64, 128, 256, 512), start=1):
        before, size = size, scale_size(full, width)
        stride = 1 if stage == 1 else 2
        layers[f"stage{stage}"] = nn.Sequential(
            ResidualBlock(before, size, stride), ResidualBlock(size, size, 1)
        )
    return chain(
        **layers, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(size, classes)
    )


class ResidualBlock(nn.Module):
    """ResNet's basic block: two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, size: int, stride: int) -> None:
        super().__init__()
        self.body = chain(
            conv1=conv3(before, size, stride),
            bn1=nn.BatchNorm2d(size),
            relu=nn.ReLU(),
            conv2=conv3(size, size),
            bn2=nn.BatchNorm2d(size),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != size:
            conv = nn.Conv2d(before, size, 1, stride=stride, bias=False)
            self.shortcut = chain(conv=conv, bn=nn.BatchNorm2d(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def conv3(before: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A padded 3x3 convolution without a bias."""
    return nn.Conv2d(before, size, 3, stride=stride, padding=1, bias=False)
