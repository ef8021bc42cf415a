"""Drawing on pixel arrays: canvas, axes, skeletons, objects; shared by sinks, ui and report."""
