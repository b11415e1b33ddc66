"""Tables and words that every layer uses."""
