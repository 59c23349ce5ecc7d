"""From CUDA text to launches: NVRTC, the driver, the emulator, and what is kept on disk between processes."""
