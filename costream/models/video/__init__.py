"""Models of video clips: continual 3D networks, MoViNet."""
