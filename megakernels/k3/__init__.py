"""Kimi K3: config, reference, quantization, speculative decoding and routing of the decode megakernel."""
