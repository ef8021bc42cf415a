"""Values of pixels in the training images of published networks."""

# Of red, green and blue, 0 to 255, in ImageNet.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
