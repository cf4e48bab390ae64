"""Models: `nn.Module`s that are made of attention, and know nothing of data, training or files."""
