"""Training steps of many architectures: right, without fallbacks, and no slower than eager."""
