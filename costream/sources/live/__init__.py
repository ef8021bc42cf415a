"""Live sources: network feeds, cameras and microphones."""
