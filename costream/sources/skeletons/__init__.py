"""Skeleton files: tables, Kinect, OpenPose, arrays."""
