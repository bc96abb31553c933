"""The tutorial megakernel: a stack of RMSNorm + SwiGLU MLP layers, tensor parallel, one Pallas call."""
