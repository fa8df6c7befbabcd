"""Training through a splitter: steps over parts or rows, all or nothing, that survive the loss of devices."""
