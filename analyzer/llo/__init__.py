"""libtpu dump files: final bundles and what stands beside them."""
