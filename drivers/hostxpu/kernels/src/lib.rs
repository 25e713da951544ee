//! Sample kernels for the host XPU.
