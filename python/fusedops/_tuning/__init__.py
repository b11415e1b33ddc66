"""Which kernel serves a product: explain shows the choice, tune measures it."""
