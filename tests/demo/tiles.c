/* A small tile pipeline, the example of `make demo`: what a program does that cachealloc helps
 * with.
 *
 * An image is cut into tiles. Every tile is brought to the device with its halo (the rows above and
 * below it that belong to its neighbours), passes through temporaries that live for one iteration,
 * and is brought back. Two streams take turns, each with a pinned staging buffer, so that copies of
 * one tile run beside those of the other. The work on the device is copies and fills alone: the
 * example needs no kernel and no nvcc.
 *
 * It frees its temporaries with plain cudaFree while the stream may still be at work on them. The
 * runtime would wait for all work of the context each time; cachealloc waits for nothing and hands
 * the memory out again when it is safe.
 *
 * And it has two bugs of the usual kind: three buffers are forgotten, in two places. The result is
 * right all the same, which is why nobody noticed. The leak report names both places. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 1024          /* bytes of a row: one byte per pixel */
#define TILE_ROWS 128       /* rows of a tile */
#define TILES 64            /* tiles of the image, one below the other */
#define STREAMS 2           /* tiles under way at once */
#define HALO_ROWS 2         /* rows of a neighbour that a tile needs on either side */
#define MARGIN 16           /* columns that the pipeline paints over at the left */
#define MARGIN_VALUE 0x5A   /* what it paints */
#define STATISTICS_EVERY 32 /* tiles between two updates of the statistics */
#define TILE_BYTES ((size_t)WIDTH * TILE_ROWS)
#define HALO_BYTES ((size_t)WIDTH * HALO_ROWS)

#define CALL(call)                                                                                 \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "tiles: %s: %s\n", #call, cudaGetErrorString(code_));                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* What a stream needs to have a tile under way. */
typedef struct lane {
    cudaStream_t stream;
    unsigned char *staging; /* pinned: one tile */
    int tile;               /* the tile that the staging buffer belongs to, or -1 */
} lane_t;

static unsigned char *image, *result; /* TILES * TILE_BYTES each */
static unsigned long checksum;        /* of the statistics, kept by update_statistics */

static unsigned char pixel(size_t row, size_t column)
{
    return (unsigned char)(row * 7 + column * 13 + (row * column) / 31);
}

/* Brings the halo rows of a tile to the device. The first and the last tile lack a neighbour, so
 * they get an edge buffer filled with a constant; the caller frees the halo. */
__attribute__((noinline)) static void *load_tile_halo(const lane_t *lane, int tile)
{
    unsigned char *halo, *edge;
    CALL(cudaMalloc((void **)&halo, 2 * HALO_BYTES));
    for (int side = 0; side < 2; side++) {
        int neighbour = side == 0 ? tile - 1 : tile + 1;
        unsigned char *to = halo + (size_t)side * HALO_BYTES;
        if (neighbour >= 0 && neighbour < TILES) {
            const unsigned char *rows = image + (size_t)neighbour * TILE_BYTES;
            if (side == 0)
                rows += TILE_BYTES - HALO_BYTES; /* the neighbour's last rows */
            CALL(cudaMemcpyAsync(to, rows, HALO_BYTES, cudaMemcpyHostToDevice, lane->stream));
        } else {
            CALL(cudaMalloc((void **)&edge, HALO_BYTES));
            CALL(cudaMemsetAsync(edge, 0, HALO_BYTES, lane->stream));
            CALL(cudaMemcpyAsync(to, edge, HALO_BYTES, cudaMemcpyDeviceToDevice, lane->stream));
            /* BUG, first place: `edge` is forgotten. It happens for two tiles of the image. */
        }
    }
    return halo;
}

/* Every now and then the first row of a tile goes into the statistics. */
__attribute__((noinline)) static void update_statistics(const lane_t *lane, const void *device_tile,
                                                        int tile)
{
    static unsigned char *row; /* lives as long as the program, or so the author thought */
    unsigned char host[WIDTH];
    if (tile % STATISTICS_EVERY != 0)
        return;
    if (tile == 0)
        CALL(cudaMalloc((void **)&row, WIDTH));
    CALL(cudaMemcpyAsync(row, device_tile, WIDTH, cudaMemcpyDeviceToDevice, lane->stream));
    CALL(cudaMemcpyAsync(host, row, WIDTH, cudaMemcpyDeviceToHost, lane->stream));
    CALL(cudaStreamSynchronize(lane->stream));
    for (int i = 0; i < WIDTH; i++)
        checksum += host[i];
    /* BUG, second place: nobody ever frees `row`. */
}

/* Starts everything for one tile. Nothing has to be finished when this returns. */
static void start_tile(lane_t *lane, int tile)
{
    unsigned char *input, *padded, *output;
    const size_t padded_bytes = TILE_BYTES + 2 * HALO_BYTES;

    /* Temporaries of this iteration. */
    CALL(cudaMalloc((void **)&input, TILE_BYTES));
    CALL(cudaMalloc((void **)&padded, padded_bytes));
    CALL(cudaMalloc((void **)&output, TILE_BYTES));
    unsigned char *halo = load_tile_halo(lane, tile);

    /* Host to device through the pinned buffer, so that the copy runs by itself. */
    memcpy(lane->staging, image + (size_t)tile * TILE_BYTES, TILE_BYTES);
    lane->tile = tile;
    CALL(cudaMemcpyAsync(input, lane->staging, TILE_BYTES, cudaMemcpyHostToDevice, lane->stream));

    /* Halo above, tile, halo below: one padded tile ... */
    CALL(cudaMemcpyAsync(padded, halo, HALO_BYTES, cudaMemcpyDeviceToDevice, lane->stream));
    CALL(cudaMemcpyAsync(padded + HALO_BYTES, input, TILE_BYTES, cudaMemcpyDeviceToDevice,
                         lane->stream));
    CALL(cudaMemcpyAsync(padded + HALO_BYTES + TILE_BYTES, halo + HALO_BYTES, HALO_BYTES,
                         cudaMemcpyDeviceToDevice, lane->stream));
    /* ... moved down by the halo's height, and its left margin painted over. */
    CALL(cudaMemcpyAsync(output, padded, TILE_BYTES, cudaMemcpyDeviceToDevice, lane->stream));
    CALL(cudaMemset2DAsync(output, WIDTH, MARGIN_VALUE, MARGIN, TILE_ROWS, lane->stream));
    update_statistics(lane, padded + HALO_BYTES, tile);

    CALL(cudaMemcpyAsync(lane->staging, output, TILE_BYTES, cudaMemcpyDeviceToHost, lane->stream));

    /* The stream may still be copying: the memory must not go to the other stream until it is done.
     * That is the allocator's task, not ours. */
    CALL(cudaFree(input));
    CALL(cudaFree(padded));
    CALL(cudaFree(output));
    CALL(cudaFree(halo));
}

/* Waits for the tile that a lane has under way and stores it. */
static void finish_tile(lane_t *lane)
{
    if (lane->tile < 0)
        return;
    CALL(cudaStreamSynchronize(lane->stream));
    memcpy(result + (size_t)lane->tile * TILE_BYTES, lane->staging, TILE_BYTES);
    lane->tile = -1;
}

/* A pixel of the result is the image's pixel HALO_ROWS above it, zero above the image, and the
 * margin is painted. Returns how many are wrong. */
static size_t verify(void)
{
    size_t wrong = 0;
    for (size_t row = 0; row < (size_t)TILES * TILE_ROWS; row++) {
        for (size_t column = 0; column < WIDTH; column++) {
            unsigned char expected = row < HALO_ROWS ? 0 : pixel(row - HALO_ROWS, column);
            if (column < MARGIN)
                expected = MARGIN_VALUE;
            wrong += result[row * WIDTH + column] != expected;
        }
    }
    unsigned long sum = 0;
    for (size_t row = 0; row < (size_t)TILES * TILE_ROWS; row += STATISTICS_EVERY * TILE_ROWS)
        for (size_t column = 0; column < WIDTH; column++)
            sum += pixel(row, column);
    return wrong + (sum != checksum);
}

int main(void)
{
    lane_t lanes[STREAMS];

    /* The image is pinned too: its halo rows are copied from where they are. */
    CALL(cudaMallocHost((void **)&image, TILES * TILE_BYTES));
    result = malloc(TILES * TILE_BYTES);
    if (!result)
        return 1;
    for (size_t row = 0; row < (size_t)TILES * TILE_ROWS; row++)
        for (size_t column = 0; column < WIDTH; column++)
            image[row * WIDTH + column] = pixel(row, column);
    for (int i = 0; i < STREAMS; i++) {
        CALL(cudaStreamCreateWithFlags(&lanes[i].stream, cudaStreamNonBlocking));
        CALL(cudaMallocHost((void **)&lanes[i].staging, TILE_BYTES));
        lanes[i].tile = -1;
    }

    for (int tile = 0; tile < TILES; tile++) {
        lane_t *lane = &lanes[tile % STREAMS];
        finish_tile(lane);
        start_tile(lane, tile);
    }

    for (int i = 0; i < STREAMS; i++) {
        finish_tile(&lanes[i]);
        CALL(cudaFreeHost(lanes[i].staging));
        CALL(cudaStreamDestroy(lanes[i].stream));
    }
    size_t wrong = verify();
    printf("tiles: %d tiles of %d x %d pixels on %d streams, %zu pixels wrong\n", TILES, WIDTH,
           TILE_ROWS, STREAMS, wrong);
    free(result);
    CALL(cudaFreeHost(image));
    return wrong != 0;
}
