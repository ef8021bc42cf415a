"""Readers of labels and annotations made by people, tools and data sets."""
