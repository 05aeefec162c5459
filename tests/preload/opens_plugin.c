/* Opens a library once CUDA is in use and before anything was allocated: opens_plugin LIBRARY */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(cudaFree(NULL));
    if (!dlopen(argv[1], RTLD_NOW))
        FAIL("%s", dlerror());
    puts("done");
    return 0;
}
