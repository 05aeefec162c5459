// Thrust: device_vector, sort, reduce, transform, with the temporary memory that they allocate. An
// error in any call throws. `check` as an argument looks at results, which only hardware gives.
#include <cstdio>
#include <cstring>
#include <exception>

#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

static int run(bool check)
{
    for (int n : {1, 1000, 1 << 20}) {
        thrust::host_vector<int> h(n);
        for (int i = 0; i < n; i++)
            h[i] = n - i;
        thrust::device_vector<int> d = h;
        thrust::sort(d.begin(), d.end());
        long long sum = thrust::reduce(d.begin(), d.end(), 0LL);
        thrust::device_vector<int> e(d);
        thrust::sequence(e.begin(), e.end());
        d.push_back(1);
        h = e;
        if (check && (sum != (long long)n * (n + 1) / 2 || h[n - 1] != n - 1)) {
            printf("n %d: sum %lld, last %d\n", n, sum, h[n - 1]);
            return 1;
        }
    }
    cudaError_t e = cudaDeviceSynchronize();
    printf("%s\n", e == cudaSuccess ? "ok" : cudaGetErrorString(e));
    return e != cudaSuccess;
}

int main(int argc, char **argv)
{
    try {
        return run(argc > 1 && strcmp(argv[1], "check") == 0);
    } catch (const std::exception &e) {
        printf("%s\n", e.what());
        return 1;
    }
}
