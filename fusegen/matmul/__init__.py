"""Matrix products: how tensors are seen by them, what is done behind them, and the steps of an op that has some."""
