"""Joints of persons in pictures: BlazePose on the persons whom a detector finds."""
