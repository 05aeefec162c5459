/* Direct I/O from and to pinned memory, as programs do it that know that cudaMallocHost gives whole
 * pages: buffers of odd sizes in between must not spoil that. The argument is a path to write. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include "check.h"

#define BLOCKS 40
#define BYTES 4096

int main(int argc, char **argv)
{
    unsigned char *blocks[BLOCKS], *odd[BLOCKS], *back;
    CHECK(argc > 1);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (fd < 0 && errno == EINVAL) {
        printf("no direct I/O in this file system\n");
        return 77;
    }
    CHECK(fd >= 0);
    for (int i = 0; i < BLOCKS; i++) {
        OK(cudaMallocHost((void **)&odd[i], (size_t)(i * 37 + 1)));
        OK(cudaMallocHost((void **)&blocks[i], BYTES));
        memset(blocks[i], i + 1, BYTES);
        if (i % 3 == 0)
            OK(cudaFreeHost(odd[i]));
    }
    for (int i = 0; i < BLOCKS; i++) {
        ssize_t written = pwrite(fd, blocks[i], BYTES, (off_t)i * BYTES);
        if (written != BYTES)
            FAIL("block %d at %p: wrote %zd: %s", i, (void *)blocks[i], written, strerror(errno));
    }
    OK(cudaMallocHost((void **)&back, BYTES));
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(pread(fd, back, BYTES, (off_t)i * BYTES) == BYTES);
        CHECK(back[0] == i + 1 && back[BYTES - 1] == i + 1);
        OK(cudaFreeHost(blocks[i]));
        if (i % 3 != 0)
            OK(cudaFreeHost(odd[i]));
    }
    OK(cudaFreeHost(back));
    close(fd);
    return 0;
}
