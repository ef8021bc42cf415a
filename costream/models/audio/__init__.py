"""Models of sound: spectrograms, backbones, VGGish, YAMNet."""
