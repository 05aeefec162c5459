// Conjugate gradients for a shifted Laplacian of 512 x 512 points, with two temporaries that are
// allocated and freed in each iteration, as codes do that were written without a pool. Checks the
// true residual; the sums are in a fixed order, so that its bits are the result.
#include "program.cuh"

#include <cmath>
#include <utility>

enum { SIDE = 512, N = SIDE * SIDE, BLOCK = 256, PARTS = 256, ITERATIONS = 100 };

__global__ void apply(const double *x, double *y)
{
    int i = blockIdx.x * BLOCK + threadIdx.x, row = i / SIDE, column = i % SIDE;
    double sum = 4.25 * x[i];
    sum -= row > 0 ? x[i - SIDE] : 0;
    sum -= row < SIDE - 1 ? x[i + SIDE] : 0;
    sum -= column > 0 ? x[i - 1] : 0;
    sum -= column < SIDE - 1 ? x[i + 1] : 0;
    y[i] = sum;
}

__global__ void dot_parts(const double *a, const double *b, double *parts)
{
    __shared__ double sums[BLOCK];
    double sum = 0;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < N; i += PARTS * BLOCK)
        sum += a[i] * b[i];
    sums[threadIdx.x] = sum;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sums[0];
}

// y = scale * y + factor * x
__global__ void combine(double *y, double scale, const double *x, double factor)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    y[i] = scale * y[i] + factor * x[i];
}

__global__ void fill(double *x)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    x[i] = mix32(i) / 4294967296.0 - 0.5;
}

static double dot(const double *a, const double *b, double *parts)
{
    double host[PARTS], sum = 0;
    dot_parts<<<PARTS, BLOCK>>>(a, b, parts);
    TRY(cudaMemcpy(host, parts, sizeof(host), cudaMemcpyDeviceToHost));
    for (double part : host)
        sum += part;
    return sum;
}

static double *vector_of(size_t n)
{
    double *memory;
    TRY(cudaMalloc(&memory, n * sizeof(*memory)));
    return memory;
}

// The residual |b - A x| / |b| that is left.
static double solve(const double *b, double *x)
{
    double *r = vector_of(N), *p = vector_of(N);
    TRY(cudaMemset(x, 0, N * sizeof(*x)));
    TRY(cudaMemcpy(r, b, N * sizeof(*r), cudaMemcpyDeviceToDevice));
    TRY(cudaMemcpy(p, b, N * sizeof(*p), cudaMemcpyDeviceToDevice));
    double before = -1, all = 0;
    for (int i = 0; i < ITERATIONS; i++) {
        double *ap = vector_of(N), *parts = vector_of(PARTS);
        apply<<<N / BLOCK, BLOCK>>>(p, ap);
        if (i == 0)
            all = before = dot(r, r, parts);
        double alpha = before / dot(p, ap, parts);
        combine<<<N / BLOCK, BLOCK>>>(x, 1, p, alpha);
        combine<<<N / BLOCK, BLOCK>>>(r, 1, ap, -alpha);
        double after = dot(r, r, parts);
        combine<<<N / BLOCK, BLOCK>>>(p, after / before, r, 1);
        before = after;
        TRY(cudaFree(ap)); // the last kernel may be in flight
        TRY(cudaFree(parts));
    }
    double *parts = vector_of(PARTS);
    apply<<<N / BLOCK, BLOCK>>>(x, r);
    combine<<<N / BLOCK, BLOCK>>>(r, -1, b, 1);
    double left = std::sqrt(dot(r, r, parts) / all);
    for (double *memory : {r, p, parts})
        TRY(cudaFree(memory));
    return left;
}

int main(int argc, char **argv)
{
    start(argc, argv, 10);
    double *b = vector_of(N), *x = vector_of(N);
    fill<<<N / BLOCK, BLOCK>>>(b);
    double first = solve(b, x);
    unsigned long long wrong = !(first < 1e-9);
    start_clock();
    for (int round = 0; round < rounds; round++)
        wrong += bits_of(solve(b, x)) != bits_of(first);
    TRY(cudaFree(b));
    TRY(cudaFree(x));
    return finish(wrong, bits_of(first));
}
