"""cuBLASLt and cuDNN, called as they are by ctypes; which of their kernels is fastest is measured."""
