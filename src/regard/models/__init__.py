"""Models: modules made of the layers, for bags, sequences and images."""
