"""Models: frontend, continual network, labels and post-processing behind one protocol."""
