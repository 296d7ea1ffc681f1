"""Training steps of many architectures: correct, without fallbacks, and as fast as eager."""
