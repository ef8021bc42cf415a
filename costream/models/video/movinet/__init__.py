"""MoViNet: trunk, network, frontend and importer."""
