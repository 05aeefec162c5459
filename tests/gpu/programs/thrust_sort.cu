// Thrust in a loop: vectors of five sizes are made, sorted and summed, with the temporary memory
// that Thrust takes by cudaMalloc each time. The sum and the order are checked on the device.
#include "program.cuh"

#include <exception>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include <thrust/tabulate.h>

struct draw {
    unsigned seed;
    __host__ __device__ unsigned operator()(unsigned i) const
    {
        return mix32(seed + i);
    }
};

struct is_less {
    const unsigned *at;
    __host__ __device__ unsigned operator()(unsigned i) const
    {
        return at[i + 1] < at[i];
    }
};

static unsigned long long one_round(unsigned seed, unsigned long long *sum)
{
    static const unsigned sizes[] = {1000, 1 << 20, 30000, 1 << 18, 3000000};
    unsigned n = sizes[seed % 5];
    thrust::device_vector<unsigned> values(n), falls(n - 1);
    thrust::tabulate(values.begin(), values.end(), draw{mix32(seed)});
    *sum = thrust::reduce(values.begin(), values.end(), 0ull);
    thrust::sort(values.begin(), values.end());
    unsigned long long again = thrust::reduce(values.begin(), values.end(), 0ull);
    thrust::tabulate(falls.begin(), falls.end(), is_less{thrust::raw_pointer_cast(values.data())});
    unsigned long long all = 0;
    for (unsigned i = 0; n == 1000 && i < n; i++) // the small one by the host too
        all += draw{mix32(seed)}(i);
    return (again != *sum) + thrust::reduce(falls.begin(), falls.end(), 0u) +
           (n == 1000 && all != *sum);
}

static int run()
{
    unsigned long long wrong = 0, result = 0, sum;
    for (unsigned seed = 0; seed < 5; seed++)
        wrong += one_round(seed, &sum);
    start_clock();
    for (unsigned seed = 0; seed < (unsigned)rounds; seed++) {
        wrong += one_round(seed, &sum);
        result = result * 31 + sum;
    }
    return finish(wrong, result);
}

int main(int argc, char **argv)
{
    start(argc, argv, 200);
    try {
        return run();
    } catch (const std::exception &error) {
        fprintf(stderr, "thrust_sort: %s\n", error.what());
        return 1;
    }
}
