/* Memory of device 0 is read by a held stream of device 1 when it is freed: nobody else is given it
 * before that stream is done. peers MODE [BYTES]
 *   access  device 1 has peer access to device 0
 *   late    it gets that access after the memory was allocated, and other memory freed
 *   copy    it has none: the driver itself copies between the devices */
#include "gate.h"

#define BUFFERS 20

int main(int argc, char **argv)
{
    static gate_t gate = GATE_CLOSED;
    const char *mode = argc > 1 ? argv[1] : "access";
    size_t bytes = number_argument(argc, argv, 2, (size_t)16 << 20);
    bool access = strcmp(mode, "copy") != 0, late = strcmp(mode, "late") == 0;
    unsigned char *seen;
    char *in_use[BUFFERS], *fresh[BUFFERS], *copies = NULL;
    cudaStream_t held, other;
    int can = 0;
    OK(cudaGetDeviceCount(&can));
    if (can < 2 || cudaDeviceCanAccessPeer(&can, 1, 0) != cudaSuccess || !can) {
        puts("needs two devices with peer access");
        return 77;
    }
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&seen, BUFFERS));
    OK(cudaMalloc((void **)&copies, BUFFERS));
    if (access && !late)
        OK(cudaDeviceEnablePeerAccess(0, 0));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (size_t i = 0; i < BUFFERS; i++) {
        OK(cudaMalloc((void **)&in_use[i], bytes));
        OK(cudaMemset(in_use[i], (int)i + 1, bytes));
    }
    OK(cudaMalloc((void **)&fresh[0], bytes));
    OK(cudaFree(fresh[0]));
    OK(cudaDeviceSynchronize());

    OK(cudaSetDevice(1));
    if (late)
        OK(cudaDeviceEnablePeerAccess(0, 0));
    gate_hold(&gate, held);
    for (size_t i = 0; i < BUFFERS; i++) {
        if (access)
            OK(cudaMemcpyAsync(&copies[i], in_use[i] + bytes - 1, 1, cudaMemcpyDeviceToDevice,
                               held));
        else
            OK(cudaMemcpyPeerAsync(&copies[i], 1, in_use[i] + bytes - 1, 0, 1, held));
    }
    OK(cudaMemcpyAsync(seen, copies, BUFFERS, cudaMemcpyDeviceToHost, held));

    OK(cudaSetDevice(0));
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cudaFree(in_use[i]));
    for (size_t i = 0; i < BUFFERS; i++) {
        OK(cudaMalloc((void **)&fresh[i], bytes));
        OK(cudaMemsetAsync(fresh[i], 0xFF, bytes, other));
    }
    OK(cudaStreamSynchronize(other));
    OK(cudaSetDevice(1));
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(held));
    gate_open(&gate);
    OK(cudaStreamSynchronize(held));
    for (size_t i = 0; i < BUFFERS; i++)
        if (seen[i] != i + 1)
            FAIL("buffer %zu was overwritten while device 1 was reading it", i);
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cudaFree(fresh[i]));
    OK(cudaFree(copies));
    OK(cudaFreeHost(seen));
    return 0;
}
