"""The only place that knows sources, models and sinks."""
