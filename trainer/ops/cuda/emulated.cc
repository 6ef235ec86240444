// The kernels for the CPU's memory, by the emulator of device.h.
#include "trainer/ops/cuda/kernels.cu"
